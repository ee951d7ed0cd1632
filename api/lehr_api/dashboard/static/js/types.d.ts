// What the API answers, from platform/lehr/schemas/. Written by `make docs`: do not edit.
// Times are seconds since the epoch; numbers that are not finite travel as strings.

export type WireNumber = number | "NaN" | "Infinity" | "-Infinity";

export interface CheckpointView {
  run_id: string;
  attempt: number;
  step: number;
  path: string;
  size_bytes: number;
  digest: string;
  reason: string;
  val_loss: WireNumber | null;
  score: WireNumber | null;
  best: boolean;
  latest: boolean;
  created_at: number;
  removed_at: number | null;
  node: string | null;
  copy_url: string | null;
  copy_state: "uploading" | "there" | "failed" | "removed" | null;
  copy_at: number | null;
  copy_error: string | null;
  kept: string[];
}

export interface FileView {
  name: string;
  size_bytes: number;
  sha256: string;
}

export interface CheckpointFiles {
  run_id: string;
  attempt: number;
  step: number;
  digest: string;
  files: FileView[];
}

export interface PlaceVerdict {
  place: string;
  ok: boolean;
  message: string;
}

export interface CheckpointVerdict {
  run_id: string;
  attempt: number;
  step: number;
  ok: boolean;
  places: PlaceVerdict[];
}

export interface CheckpointDeletion {
  run_id: string;
  attempt: number;
  step: number;
  deleted: boolean;
  bytes: number;
  places: string[];
  notes: string[];
}

export interface CapsuleFile {
  name: string;
  bytes: number;
}

export interface CapsuleView {
  digest: string;
  bytes: number;
  installed: boolean;
  files: CapsuleFile[];
}

export interface FileChange {
  name: string;
  change: "added" | "removed" | "changed";
  patch: string | null;
}

export interface CodeDiff {
  first: string;
  second: string;
  changes: FileChange[];
}

export interface GpuView {
  index: number;
  name: string;
  memory_bytes: number | null;
  utilization: number | null;
  memory_used_bytes: number | null;
  temperature_celsius: number | null;
  run_id: string | null;
  run_name: string | null;
  attempt: number | null;
  since: number | null;
}

export interface NodeView {
  name: string;
  address: string;
  alive: boolean;
  logical: boolean;
  gpus: GpuView[];
  cpus: number | null;
  cpu_utilization: number | null;
  ram_used_bytes: number | null;
  ram_bytes: number | null;
  last_seen_at: number | null;
  excluded: string | null;
  left: boolean;
  away: string | null;
  problems: string[];
  notes: string[];
  until: number | null;
  ending: string | null;
  versions: Record<string, string>;
  clock_offset_s: number | null;
  free_bytes: Record<string, number | null>;
  runs_folder: string | null;
  no_runs: string | null;
}

export interface ClusterView {
  state: "starting" | "up" | "down";
  message: string | null;
  nodes: NodeView[];
  gpus_total: number;
  gpus_busy: number;
  gpus_free: number;
}

export interface QueueEntry {
  position: number;
  run_id: string;
  name: string;
  project: string;
  gpus: number;
  nodes: number;
  gpu_type: string | null;
  priority: number;
  reason: string;
  queued_at: number;
  expected_start: number | null;
  expected_because: string;
}

export interface RunSpan {
  run_id: string;
  name: string;
  project: string;
  person: string;
  state: string;
  gpus: number[];
  began: number;
  trains_at: number | null;
  ended: number | null;
}

export interface SeenSpan {
  began: number;
  ended: number;
  gpus: number;
  kind: string;
  why: string;
  project: string | null;
  person: string | null;
}

export interface UnusedSpan {
  gpu: number;
  began: number;
  ended: number;
}

export interface NodeHistory {
  name: string;
  gpus: number;
  spans: SeenSpan[];
  runs: RunSpan[];
  unused: UnusedSpan[];
}

export interface IdleHours {
  by: "all" | "week" | "node" | "project" | "person";
  name: string;
  kind: string;
  gpu_hours: number;
}

export interface ClusterHistory {
  began: number;
  ended: number;
  nodes: NodeHistory[];
  queue: SeenSpan[];
  gpu_hours: number;
  idle: IdleHours[];
}

export interface NodeFigures {
  node: string;
  began: number;
  part_s: number;
  figures: Record<string, (number | null)[]>;
}

export interface DifferenceView {
  path: string;
  values: any[];
  factor: boolean;
}

export interface RunResultView {
  run_id: string;
  name: string;
  state: string;
  x: number | null;
  value: WireNumber | null;
  delta: WireNumber | null;
  incomparable: string | null;
  held_out: string | null;
  batches: "same" | "different" | "unknown";
  batches_differ_from: number | null;
  tokens_per_s: WireNumber | null;
  step_time_s: WireNumber | null;
  mfu: WireNumber | null;
  memory_bytes: WireNumber | null;
}

export interface GapView {
  base_ids: string[];
  run_ids: string[];
  verdict: "differs" | "within_noise" | "unknown" | "diverged";
  difference: number | null;
  half_width: number | null;
  more_seeds: number | null;
  sentence: string;
}

export interface RunGroupView {
  name: string;
  run_ids: string[];
  count: number;
  mean: number | null;
  deviation: number | null;
  far: string[];
}

export interface ComparisonView {
  runs: string[];
  metric: string;
  goal: "minimize" | "maximize" | null;
  x_axis: "step" | "tokens" | "time" | "flops" | "end";
  common_x: number | null;
  results: RunResultView[];
  differences: DifferenceView[];
  noise: number | null;
  noise_note: string;
  gaps: GapView[];
  groups: RunGroupView[];
  means: string[];
  held_out: "same" | "different" | "unknown";
  held_out_note: string | null;
  batches: "same" | "different" | "unknown";
  batches_note: string;
  notes: string[];
}

export interface GateView {
  name: "first_loss" | "falling_loss" | "no_alerts" | "memory" | "mfu" | "exact_resume";
  title: string;
  state: "waiting" | "passed" | "failed" | "not_judged" | "skipped" | "off";
  expected: string;
  seen: string | null;
  value: number | null;
  at_least: number | null;
  at_most: number | null;
  unit: string | null;
  run_id: string | null;
  step: number | null;
  judged_at: number | null;
}

export interface StageRunView {
  role: "train" | "whole" | "resumed";
  run: RunView;
}

export interface StageView {
  number: number;
  name: "cpu" | "one_gpu" | "two_gpus" | "all";
  title: string;
  state: "waiting" | "running" | "passed" | "failed" | "cancelled" | "skipped";
  reason: string | null;
  gpus: number;
  nodes: number;
  gpu_type: string | null;
  model: string;
  steps: number;
  tokens_per_step: number;
  judged_at_step: number;
  changes: Record<string, any>;
  gates: GateView[];
  runs: StageRunView[];
  gpu_seconds: number | null;
  cost: CostView | null;
  started_at: number | null;
  ended_at: number | null;
}

export interface RolloutView {
  id: string;
  name: string;
  project: string;
  tags: string[];
  note: string;
  state: "running" | "passed" | "failed" | "cancelled";
  reason: string | null;
  stage: string | null;
  progress: Record<string, "waiting" | "running" | "passed" | "failed" | "cancelled" | "skipped">;
  run_id: string | null;
  created_at: number;
  ended_at: number | null;
  archived: boolean;
}

export interface RolloutDetail {
  id: string;
  name: string;
  project: string;
  tags: string[];
  note: string;
  state: "running" | "passed" | "failed" | "cancelled";
  reason: string | null;
  stage: string | null;
  progress: Record<string, "waiting" | "running" | "passed" | "failed" | "cancelled" | "skipped">;
  run_id: string | null;
  created_at: number;
  ended_at: number | null;
  archived: boolean;
  spec: Record<string, any>;
  stages: StageView[];
  cost: CostView | null;
  notes: string[];
}

export interface UsedView {
  gpu_hours: number;
  until: number | null;
}

export interface CostView {
  gpu_hours: number;
  until: number | null;
  attempts: number;
  gpu: string | null;
  dollars_per_gpu_hour: number | null;
  dollars: number | null;
  planned_gpu_hours: number | null;
  planned_dollars: number | null;
  planned_basis: string | null;
  text: string;
}

export interface GpuRef {
  node: string;
  gpu: number;
}

export interface Latest {
  value: WireNumber;
  step: number;
}

export interface RunView {
  id: string;
  name: string;
  project: string;
  sweep_id: string | null;
  rollout_id: string | null;
  tags: string[];
  note: string;
  state: string;
  desired: string;
  reason: string | null;
  cause: string | null;
  pending_reason: string | null;
  attempt: number;
  priority: number;
  gpus: number;
  nodes: number;
  gpu_type: string | null;
  device: string | null;
  placement: GpuRef[];
  step: number | null;
  total_steps: number;
  tokens_per_step: number;
  tokens: number | null;
  total_tokens: number;
  stage: string | null;
  parameters: number | null;
  flops_per_token: number | null;
  latest: Record<string, Latest>;
  recorded_at: number | null;
  trend: WireNumber[];
  parameters_varied: Record<string, any>;
  eta_s: number | null;
  liveness: "ok" | "unreachable" | "stalled";
  training_over: string | null;
  alerts: string[];
  created_at: number;
  queued_at: number | null;
  started_at: number | null;
  ended_at: number | null;
  used: UsedView | null;
  archived: boolean;
  forked_from: string | null;
  submitted_by: string;
}

export interface WandbView {
  mode: "online" | "offline";
  state: "waiting" | "mirroring" | "done" | "failed";
  url: string | null;
  folder: string | null;
  error: string | null;
  text: string;
}

export interface ForecastView {
  metric: string;
  step: number | null;
  value: number | null;
  likely: [number, number] | null;
  sure: [number, number] | null;
  how: string;
  text: string;
}

export interface AttemptView {
  id: string;
  number: number;
  placement: GpuRef[];
  resume_from: string | null;
  open: boolean;
  created_at: number;
  dispatched_at: number | null;
  last_heartbeat_at: number | null;
  exited_at: number | null;
  exit_code: number | null;
  signal: string | null;
  outcome: string | null;
  cause: string | null;
  message: string | null;
  streams: Record<string, number>;
}

export interface TrainStage {
  name: string;
  first_step: number;
  last_step: number;
  tokens: number;
  sequences: number;
  sequence_length: number;
}

export interface EvaluationView {
  name: string;
  attempt: number;
  step: number;
  run_id: string;
  state: string;
  reason: string | null;
}

export interface RunDetail {
  id: string;
  name: string;
  project: string;
  sweep_id: string | null;
  rollout_id: string | null;
  tags: string[];
  note: string;
  state: string;
  desired: string;
  reason: string | null;
  cause: string | null;
  pending_reason: string | null;
  attempt: number;
  priority: number;
  gpus: number;
  nodes: number;
  gpu_type: string | null;
  device: string | null;
  placement: GpuRef[];
  step: number | null;
  total_steps: number;
  tokens_per_step: number;
  tokens: number | null;
  total_tokens: number;
  stage: string | null;
  parameters: number | null;
  flops_per_token: number | null;
  latest: Record<string, Latest>;
  recorded_at: number | null;
  trend: WireNumber[];
  parameters_varied: Record<string, any>;
  eta_s: number | null;
  liveness: "ok" | "unreachable" | "stalled";
  training_over: string | null;
  alerts: string[];
  created_at: number;
  queued_at: number | null;
  started_at: number | null;
  ended_at: number | null;
  used: UsedView | null;
  archived: boolean;
  forked_from: string | null;
  submitted_by: string;
  stages: TrainStage[];
  spec: Record<string, any>;
  logged_config: Record<string, any>;
  provenance: Record<string, any>;
  attempts: AttemptView[];
  evaluations: EvaluationView[];
  wandb: WandbView | null;
  diagnosis: AlertView[];
  forecast: ForecastView | null;
  cost: CostView | null;
  held_out: string | null;
  warnings: string[];
}

export interface MetricInfo {
  name: string;
  goal: "minimize" | "maximize" | null;
  points: number;
  last: WireNumber;
  last_step: number;
  minimum: WireNumber | null;
  maximum: WireNumber | null;
}

export interface Series {
  run_id: string;
  name: string;
  goal: "minimize" | "maximize" | null;
  speed: boolean;
  x_axis: "step" | "tokens" | "time" | "flops";
  exact: boolean;
  total_points: number;
  step: number[];
  x: WireNumber[];
  y: WireNumber[];
  low: WireNumber[] | null;
  high: WireNumber[] | null;
  nonfinite: number[];
  superseded: Series[];
  members: number;
  counts: number[] | null;
  dropouts: string;
  far: string[];
}

export interface LogStream {
  name: string;
  attempt: number;
  size_bytes: number;
  cut: boolean;
}

export interface LogChunk {
  name: string;
  attempt: number;
  offset: number;
  next_offset: number;
  size_bytes: number;
  text: string;
  ended: boolean;
}

export interface EventView {
  at: number;
  kind: string;
  message: string;
  attempt: number;
  step: number | null;
  data: Record<string, any>;
}

export interface SampleView {
  step: number;
  attempt: number;
  prompt: string;
  text: string;
  at: number;
}

export interface MediaView {
  name: string;
  step: number;
  attempt: number;
  type: "image" | "table" | "histogram" | "file";
  caption: string;
  offset: number;
  size: number;
  at: number;
}

export interface AlertLine {
  name: string;
  text: string;
}

export interface AlertView {
  code: "nan" | "too_good" | "diverging" | "spikes" | "oscillating" | "stagnant" | "low_lr" | "high_lr" | "exploding" | "exploding_part" | "dead_part" | "overfitting" | "memorization" | "implausible" | "data_wait" | "slowdown" | "straggler" | "memory_creep" | "repeated_batches" | "other_data" | "lost_records";
  step: number;
  seen: string;
  advice: string;
  sure: "certain" | "likely" | "possible";
  cause: string;
  source: string;
  message: string;
  explanation: AlertLine[];
}

export interface TrialView {
  number: number;
  parameters: Record<string, any>;
  run: RunView;
  value: WireNumber | null;
  step: number | null;
  compared_value: WireNumber | null;
  rank: number | null;
  best: boolean;
  held_out: string | null;
}

export interface StandingView {
  number: number;
  value: WireNumber | null;
  step: number | null;
  compared_value: WireNumber | null;
  rank: number | null;
  best: boolean;
}

export interface SweepView {
  id: string;
  name: string;
  project: string;
  tags: string[];
  note: string;
  method: string;
  metric: string;
  goal: string;
  parameters: string[];
  counts: Record<string, number>;
  trials_remaining: number;
  stopped: string | null;
  state: "waiting" | "running" | "finished";
  best_run_id: string | null;
  best_value: WireNumber | null;
  compared_at_step: number | null;
  compared_at_tokens: number | null;
  best_parameters: Record<string, any> | null;
  held_out: "same" | "different" | "unknown" | null;
  held_out_note: string | null;
  used: UsedView | null;
  created_at: number;
  archived: boolean;
}

export interface PointView {
  parameters: Record<string, any>;
  run_ids: string[];
  mean: number | null;
  spread: number | null;
  rank: number | null;
}

export interface NoiseView {
  deviation: number;
  freedom: number;
  groups: number;
}

export interface NextTrials {
  parameters: Record<string, any[]> | null;
  points: Record<string, any>[] | null;
  repeat: string[];
  trials: number;
  command: string;
}

export interface SweepDetail {
  id: string;
  name: string;
  project: string;
  tags: string[];
  note: string;
  method: string;
  metric: string;
  goal: string;
  parameters: string[];
  counts: Record<string, number>;
  trials_remaining: number;
  stopped: string | null;
  state: "waiting" | "running" | "finished";
  best_run_id: string | null;
  best_value: WireNumber | null;
  compared_at_step: number | null;
  compared_at_tokens: number | null;
  best_parameters: Record<string, any> | null;
  held_out: "same" | "different" | "unknown" | null;
  held_out_note: string | null;
  used: UsedView | null;
  created_at: number;
  archived: boolean;
  spec: Record<string, any>;
  trials: TrialView[];
  next_cursor: string | null;
  trials_total: number;
  repetitions: TrialView[];
  standings: StandingView[];
  best_trials: TrialView[];
  steps_made: number;
  steps_done: number;
  steps_total: number;
  started_at: number | null;
  ended_at: number | null;
  points: PointView[];
  noise: number | null;
  noise_band: number | null;
  noise_elsewhere: NoiseView | null;
  notes: string[];
  warnings: string[];
  next_trials: NextTrials | null;
  cost: CostView | null;
}

export interface SweepFigure {
  parameter: string;
  verdict: string;
  notes: string[];
  svg: string;
  importance: Record<string, number>;
}
