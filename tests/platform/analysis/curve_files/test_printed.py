"""Patterns that are proposed for the print lines of published training scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.curve_files.printed import propose, source_lines, unprinted
from lehr.specs.prints import PrintedLines

NANOGPT = """
print(f"tokens per iteration will be: {tokens_per_iter:,}")
print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
print(f"iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms, mfu {running_mfu*100:.2f}%")
"""
NANOGPT_PATTERNS = [
    "step {step}: train loss {eval/train_loss}, val loss {val/loss}",
    "iter {step}: loss {loss}, time {time}ms, mfu {mfu}%",
]
MINGPT = """
print('data has %d characters, %d unique.' % (data_size, vocab_size))
print(f"iter_dt {t.iter_dt * 1000:.2f}ms; iter {t.iter_num}: train loss {t.loss.item():.5f}")
"""
BUILD_NANOGPT = """
print(f"validation loss: {val_loss_accum.item():.4f}")
print(f"step {step:5d} | loss: {loss:.6f} | lr {lr:.4e} | norm: {norm:.4f} | tok/sec: {speed:.2f}")
"""
MNIST = """
print('Train Epoch: {} [{}/{} ({:.0f}%)]\\tLoss: {:.6f}'.format(
    epoch, batch_idx * len(data), len(train_loader.dataset), percent, loss.item()))
print('\\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\\n'.format(a, b, c, d))
"""
WORD_LM = """
print('| epoch {:3d} | {:5d}/{:5d} batches | lr {:02.2f} | ms/batch {:5.2f} | '
      'loss {:5.2f}'.format(epoch, batch, batches, lr, ms, cur_loss))
print('| end of epoch {:3d} | valid loss {:5.2f} | valid ppl {:8.2f}'.format(epoch, val_loss, ppl))
print('| End of training | test loss {:5.2f} | test ppl {:8.2f}'.format(test_loss, ppl))
"""
PLAIN = 'print("step", step, "loss:", loss)\nprint("lr " + str(lr) + " at step %d" % step)'


@pytest.mark.parametrize(
    ("source", "patterns"),
    [
        (NANOGPT, NANOGPT_PATTERNS),
        (MINGPT, ["iter_dt {iter_dt}ms; iter {step}: train loss {train/loss}"]),
        (
            BUILD_NANOGPT,
            [
                "step {step} | loss: {loss} | lr {lr} | norm: {norm} | tok/sec: {tok/sec}",
                "validation loss: {val/loss}",
            ],
        ),
        (
            MNIST,
            [
                "Train Epoch: {epoch} [{}/{} ({}%)] Loss: {loss}",
                "Average loss: {val/loss}, Accuracy: {val/accuracy}",
            ],
        ),
        (
            WORD_LM,
            [
                "epoch {epoch} | {step}/{} batches | lr {lr} | ms/batch {ms/batch} | loss {loss}",
                "of epoch {epoch} | valid loss {val/loss} | valid ppl {val/ppl}",
                "test loss {test/loss} | test ppl {test/ppl}",
            ],
        ),
        (PLAIN, ["step {step} loss: {loss}", "lr {lr} at step {step}"]),
    ],
)
def test_source_of_a_script_suggests_patterns_that_it_prints(source, patterns):
    assert propose(source_lines(source)) == patterns
    assert unprinted([*patterns, "epoch {epoch} done"], [source]) == ["epoch {epoch} done"]


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (" 10%|█   | 10/100 [00:01<00:09, 9.95it/s, loss=2.31]", "{step}/{} [{}:{}<{}:{}, {}it/s, loss={loss}"),
        ("2024-01-02 10:11:12,1 - INFO - step 10 loss=2.5 lr=1e-4", "step {step} loss={loss} lr={lr}"),
        ("Epoch [1/10], Step [100/600], Loss: 0.1234", "Epoch [{epoch}/{}], Step [{step}/{}], Loss: {loss}"),
        ("{'loss': 2.3, 'grad_norm': 1.2}", "loss': {loss}, 'grad_norm': {grad_norm}"),
        ("saved 3 files", None),
    ],
)  # fmt: skip
def test_line_of_a_log_suggests_a_pattern(line, pattern):
    assert propose([line, line]) == ([pattern] if pattern else [])


@given(st.lists(st.text("ab step loss :=|{}/[]%.,-+0123456789e\t", max_size=60), max_size=5))
def test_each_proposed_pattern_is_valid_and_matches_one_of_the_lines(lines):
    printed = PrintedLines(propose(lines))
    for line in lines:
        printed.row(line)
    assert printed.unmatched == []
