/**
 * The shapes that the API answers (platform/lehr/schemas/), for editors and type checkers.
 * Times are seconds since the epoch; numbers that are not finite travel as strings.
 *
 * @typedef {number | "NaN" | "Infinity" | "-Infinity"} WireNumber
 * @typedef {{value: WireNumber, step: number}} Latest
 * @typedef {{node: string, gpu: number}} GpuRef
 *
 * @typedef {object} RunView
 * @property {string} id
 * @property {string} name
 * @property {string} project
 * @property {string | null} sweep_id
 * @property {string | null} rollout_id
 * @property {string[]} tags
 * @property {string} note
 * @property {string} state
 * @property {string} desired
 * @property {string | null} reason
 * @property {string | null} cause
 * @property {string | null} pending_reason
 * @property {number} attempt
 * @property {number} gpus
 * @property {number} nodes
 * @property {string | null} gpu_type
 * @property {string | null} device
 * @property {GpuRef[]} placement
 * @property {number | null} step
 * @property {number} total_steps 0 where only the program knows it
 * @property {number} tokens_per_step
 * @property {number | null} parameters
 * @property {number | null} flops_per_token
 * @property {Record<string, Latest>} latest
 * @property {WireNumber[]} trend
 * @property {Record<string, unknown>} parameters_varied
 * @property {number | null} eta_s
 * @property {"ok" | "unreachable" | "stalled"} liveness
 * @property {string[]} alerts
 * @property {number} created_at
 * @property {number | null} queued_at
 * @property {number | null} started_at
 * @property {number | null} ended_at
 * @property {boolean} archived
 * @property {string | null} forked_from
 * @property {string} submitted_by
 *
 * @typedef {object} AttemptView
 * @property {string} id
 * @property {number} number
 * @property {GpuRef[]} placement
 * @property {string | null} resume_from
 * @property {boolean} open
 * @property {number} created_at
 * @property {number | null} dispatched_at
 * @property {number | null} exited_at
 * @property {number | null} exit_code
 * @property {string | null} signal
 * @property {string | null} cause
 * @property {string | null} outcome
 * @property {string | null} message
 *
 * @typedef {{name: string, text: string}} AlertLine
 * @typedef {{code: string, step: number, message: string, explanation: AlertLine[]}} AlertView
 *
 * @typedef {RunView & {spec: Record<string, any>, provenance: Record<string, any>,
 *   attempts: AttemptView[], cost: CostView | null, warnings: string[], diagnosis: AlertView[],
 *   wandb: {text: string, url: string | null} | null}} RunDetail
 *
 * @typedef {"same" | "different" | "unknown"} HeldOut
 *
 * @typedef {object} CostView
 * @property {number} gpu_hours
 * @property {number} attempts
 * @property {string | null} gpu
 * @property {number | null} dollars_per_gpu_hour
 * @property {number | null} dollars
 * @property {number | null} planned_gpu_hours
 * @property {number | null} planned_dollars
 * @property {string | null} planned_basis
 *
 * @typedef {object} NextTrials
 * @property {Record<string, any[]> | null} parameters
 * @property {Record<string, any>[] | null} points
 * @property {number} trials
 * @property {string} command
 *
 * @typedef {object} TrialView
 * @property {number} number
 * @property {Record<string, any>} parameters
 * @property {RunView} run
 * @property {WireNumber | null} value
 * @property {number | null} step
 * @property {WireNumber | null} compared_value
 * @property {number | null} rank
 * @property {boolean} best
 * @property {string | null} held_out
 *
 * @typedef {object} SweepView
 * @property {string} id
 * @property {string} name
 * @property {string} project
 * @property {string[]} tags
 * @property {string} note
 * @property {string} method
 * @property {string} metric
 * @property {string} goal
 * @property {string[]} parameters
 * @property {Record<string, number>} counts
 * @property {"waiting" | "running" | "finished"} state
 * @property {string | null} best_run_id
 * @property {WireNumber | null} best_value
 * @property {Record<string, any> | null} best_parameters
 * @property {number | null} compared_at_step
 * @property {HeldOut | null} held_out
 * @property {string | null} held_out_note
 * @property {number} trials_remaining
 * @property {string | null} stopped
 * @property {number} created_at
 *
 * @typedef {{number: number, value: WireNumber | null, step: number | null,
 *   compared_value: WireNumber | null, rank: number | null, best: boolean}} StandingView
 *
 * @typedef {SweepView & {spec: Record<string, any>, trials: TrialView[], next_cursor: string | null,
 *   trials_total: number, best_trials: TrialView[], standings: StandingView[], notes: string[], warnings: string[],
 *   cost: CostView | null, next_trials: NextTrials | null, steps_done: number,
 *   steps_total: number}} SweepDetail
 *
 * @typedef {object} RunResultView
 * @property {string} run_id
 * @property {number | null} x
 * @property {WireNumber | null} value
 * @property {WireNumber | null} delta
 * @property {string | null} incomparable
 * @property {string | null} held_out
 * @property {HeldOut} batches
 * @property {number | null} batches_differ_from
 * @property {WireNumber | null} tokens_per_s
 * @property {WireNumber | null} mfu
 * @property {WireNumber | null} step_time_s
 * @property {WireNumber | null} memory_bytes
 *
 * @typedef {object} GapView
 * @property {string[]} base_ids
 * @property {string[]} run_ids
 * @property {string} verdict
 * @property {string} sentence
 *
 * @typedef {object} ComparisonView
 * @property {string[]} runs
 * @property {number | null} common_x
 * @property {RunResultView[]} results
 * @property {{path: string, values: any[], factor: boolean}[]} differences
 * @property {number | null} noise
 * @property {GapView[]} gaps
 * @property {string[]} means
 * @property {HeldOut} held_out
 * @property {string | null} held_out_note
 * @property {HeldOut} batches
 * @property {string} batches_note
 * @property {string[]} notes
 *
 * @typedef {object} GateView
 * @property {string} name
 * @property {string} title
 * @property {"waiting" | "passed" | "failed" | "not_judged" | "off"} state
 * @property {string} expected
 * @property {string | null} seen
 * @property {number | null} value
 * @property {number | null} at_least
 * @property {number | null} at_most
 * @property {string | null} unit
 * @property {string | null} run_id
 * @property {number | null} step
 * @property {number | null} judged_at
 *
 * @typedef {"waiting" | "running" | "passed" | "failed" | "cancelled" | "skipped"} StageState
 *
 * @typedef {object} StageView
 * @property {number} number
 * @property {string} name
 * @property {string} title
 * @property {StageState} state
 * @property {string | null} reason
 * @property {number} gpus
 * @property {number} nodes
 * @property {string | null} gpu_type
 * @property {string} model
 * @property {number} steps
 * @property {number} tokens_per_step
 * @property {number} judged_at_step
 * @property {Record<string, any>} changes
 * @property {GateView[]} gates
 * @property {{role: "train" | "whole" | "resumed", run: RunView}[]} runs
 * @property {number | null} gpu_seconds
 * @property {CostView | null} cost
 * @property {number | null} started_at
 * @property {number | null} ended_at
 *
 * @typedef {object} RolloutView
 * @property {string} id
 * @property {string} name
 * @property {string} project
 * @property {string[]} tags
 * @property {string} note
 * @property {"running" | "passed" | "failed" | "cancelled"} state
 * @property {string | null} reason
 * @property {string | null} stage
 * @property {Record<string, StageState>} progress
 * @property {string | null} run_id
 * @property {number} created_at
 * @property {number | null} ended_at
 * @property {boolean} archived
 *
 * @typedef {RolloutView & {spec: Record<string, any>, stages: StageView[], cost: CostView | null,
 *   notes: string[]}} RolloutDetail
 *
 * @typedef {object} MetricInfo
 * @property {string} name
 * @property {number} points
 * @property {WireNumber} last
 * @property {number} last_step
 * @property {WireNumber | null} minimum
 * @property {WireNumber | null} maximum
 *
 * @typedef {object} SeriesView
 * @property {string} run_id
 * @property {string} name
 * @property {"step" | "tokens" | "time"} x_axis
 * @property {boolean} exact
 * @property {number} total_points
 * @property {number[]} step
 * @property {WireNumber[]} x
 * @property {WireNumber[]} y
 * @property {WireNumber[] | null} low
 * @property {WireNumber[] | null} high
 * @property {SeriesView[]} superseded
 *
 * @typedef {{name: string, attempt: number, size_bytes: number, cut: boolean}} LogStream
 * @typedef {{name: string, attempt: number, offset: number, next_offset: number,
 *   size_bytes: number, text: string, ended: boolean}} LogChunk
 * @typedef {{at: number, kind: string, message: string, attempt: number, step: number | null,
 *   data: Record<string, any>}} EventView
 * @typedef {{step: number, attempt: number, prompt: string, text: string, at: number}} SampleView
 * @typedef {{run_id: string, attempt: number, step: number, path: string, size_bytes: number,
 *   digest: string, reason: string, val_loss: WireNumber | null, best: boolean, latest: boolean,
 *   created_at: number, removed_at: number | null,
 *   copy_state: "uploading" | "there" | "failed" | "removed" | null}} CheckpointView
 *
 * @typedef {object} CheckpointFiles
 * @property {{name: string, size_bytes: number, sha256: string}[]} files
 *
 * @typedef {object} CheckpointVerdict
 * @property {boolean} ok
 * @property {{place: string, ok: boolean, message: string}[]} places
 *
 * @typedef {object} CheckpointDeletion
 * @property {number} bytes
 * @property {string[]} places
 * @property {string[]} notes
 *
 * @typedef {object} CapsuleView
 * @property {string} digest
 * @property {number} bytes
 * @property {boolean} installed
 * @property {{name: string, bytes: number}[]} files
 *
 * @typedef {object} CodeDiff
 * @property {{name: string, change: "added" | "removed" | "changed", patch: string | null}[]} changes
 *
 * @typedef {{index: number, name: string, memory_bytes: number | null, utilization: number | null,
 *   memory_used_bytes: number | null, temperature_celsius: number | null, run_id: string | null,
 *   run_name: string | null, attempt: number | null, since: number | null}} GpuView
 * @typedef {{name: string, address: string, alive: boolean, logical: boolean, gpus: GpuView[],
 *   cpus: number | null, last_seen_at: number | null,
 *   excluded: string | null, problems: string[], versions: {[name: string]: string},
 *   clock_offset_s: number | null, free_bytes: {[name: string]: number | null},
 *   runs_folder: string | null}} NodeView
 * @typedef {{state: "starting" | "up" | "down", message: string | null, nodes: NodeView[],
 *   gpus_total: number, gpus_busy: number}} ClusterView
 * @typedef {{cpu: (number | null)[], ram_used_bytes: (number | null)[], ram_bytes: (number | null)[],
 *   disk_used_bytes: (number | null)[], disk_bytes: (number | null)[],
 *   disk_read_bytes_per_s: (number | null)[], disk_write_bytes_per_s: (number | null)[],
 *   network_in_bytes_per_s: (number | null)[], network_out_bytes_per_s: (number | null)[]}} HostHistory
 * @typedef {{index: number, utilization: (number | null)[], memory_used_bytes: (number | null)[],
 *   power_watts: (number | null)[], temperature_celsius: (number | null)[]}} GpuHistory
 * @typedef {{node: string, step_s: number, times: number[], host: HostHistory,
 *   gpus: GpuHistory[]}} SystemHistory
 * @typedef {{run_id: string, attempts: {number: number, nodes: SystemHistory[]}[]}} RunSystem
 * @typedef {{name: string, query: string, saved_at: number}} SavedView
 * @typedef {{position: number, run_id: string, name: string, gpus: number, nodes: number,
 *   gpu_type: string | null, priority: number, reason: string, queued_at: number,
 *   expected_start: number | null, expected_because: string}} QueueEntry
 *
 * @typedef {object} MaintenanceView
 * @property {number} id
 * @property {string | null} node
 * @property {"open" | "coming" | "over"} state
 * @property {number} starts_at
 * @property {number} ends_at
 * @property {"daily" | "weekly" | null} repeat
 * @property {string} note
 * @property {string} created_by
 * @property {number} created_at
 */
export {};
