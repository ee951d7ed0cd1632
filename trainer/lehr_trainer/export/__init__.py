"""Export of a trained model to a folder that ``transformers`` loads: weights, tokenizer, card."""
