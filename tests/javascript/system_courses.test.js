import assert from "node:assert/strict";
import test from "node:test";
import { startFacts } from "../../api/lehr_api/dashboard/static/js/run/system.js";
import { courses } from "../../api/lehr_api/dashboard/static/js/system_courses.js";

const NONE = { cpu: [], ram_used_bytes: [], ram_bytes: [], disk_used_bytes: [], disk_bytes: [], disk_read_bytes_per_s: [], disk_write_bytes_per_s: [], network_in_bytes_per_s: [], network_out_bytes_per_s: [] };

test("only measured figures are shown, GPUs first, memory up to what the node has", () => {
  const gpu = { index: 3, utilization: [0.5, 1], memory_used_bytes: [], power_watts: [null, 400.4], temperature_celsius: [null, null] };
  const shown = courses({ node: "n1", step_s: 10, times: [0, 10], host: { ...NONE, ram_used_bytes: [1, 2], ram_bytes: [8, null] }, gpus: [gpu] });
  assert.deepEqual(shown.map((one) => [one.label, one.top]), [["GPU 3", 1], ["GPU 3 power", undefined], ["memory", 8]]);
  assert.equal(shown[1].text(400.4), "400 W");
});

test("a node that was never measured shows nothing", () => {
  assert.deepEqual(courses({ node: "n1", step_s: 10, times: [], host: NONE, gpus: [] }), []);
});

test("counts that a program did not declare are no facts of its device", () => {
  const start = { kind: "started", device: "cpu", parameters: 0, tokens_per_step: 1, total_steps: 300 };
  assert.deepEqual(startFacts(start), [["device", "cpu"], ["total_steps", 300]]);
});
