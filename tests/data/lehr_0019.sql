CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE sweeps (
	number INTEGER NOT NULL,
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	spec JSON NOT NULL,
	tags JSON NOT NULL,
	created_at FLOAT NOT NULL,
	archived BOOLEAN NOT NULL, stopped VARCHAR, reopened_at FLOAT, note VARCHAR DEFAULT '' NOT NULL, seeds_of VARCHAR, submitted_by VARCHAR DEFAULT 'user' NOT NULL,
	PRIMARY KEY (number),
	UNIQUE (id)
);
CREATE INDEX ix_sweeps_name ON sweeps (name);
CREATE INDEX ix_sweeps_project ON sweeps (project);
CREATE TABLE runs (
	number INTEGER NOT NULL,
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	sweep_id VARCHAR,
	spec JSON NOT NULL,
	tags JSON NOT NULL,
	priority INTEGER NOT NULL,
	state VARCHAR NOT NULL,
	desired VARCHAR NOT NULL,
	attempt INTEGER NOT NULL,
	checkpoint_seq INTEGER NOT NULL,
	reason VARCHAR,
	cause VARCHAR,
	pending_reason VARCHAR,
	user_failures INTEGER NOT NULL,
	infrastructure_failures INTEGER NOT NULL,
	preemptions INTEGER NOT NULL,
	submitted_by VARCHAR NOT NULL,
	forked_from VARCHAR,
	resume_from VARCHAR,
	archived BOOLEAN NOT NULL,
	created_at FLOAT NOT NULL,
	queued_at FLOAT NOT NULL,
	started_at FLOAT,
	ended_at FLOAT, provenance_sha256 VARCHAR REFERENCES provenance (sha256), note VARCHAR DEFAULT '' NOT NULL,
	PRIMARY KEY (number),
	FOREIGN KEY(sweep_id) REFERENCES sweeps (id),
	UNIQUE (id)
);
CREATE INDEX ix_runs_name ON runs (name);
CREATE INDEX ix_runs_project ON runs (project);
CREATE INDEX ix_runs_state ON runs (state);
CREATE INDEX ix_runs_sweep_id ON runs (sweep_id);
CREATE TABLE attempts (
	id VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	placement JSON NOT NULL,
	token_sha256 VARCHAR NOT NULL,
	resume_from VARCHAR,
	open BOOLEAN NOT NULL,
	created_at FLOAT NOT NULL,
	dispatched_at FLOAT,
	last_heartbeat_at FLOAT,
	last_step INTEGER,
	last_step_at FLOAT,
	exited_at FLOAT,
	exit JSON,
	finished JSON,
	events_applied INTEGER NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES runs (id),
	UNIQUE (run_id, number)
);
CREATE INDEX ix_attempts_open ON attempts (open);
CREATE INDEX ix_attempts_run_id ON attempts (run_id);
CREATE TABLE "trials" (
	id INTEGER NOT NULL,
	sweep_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	parameters JSON NOT NULL,
	run_id VARCHAR NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES runs (id),
	FOREIGN KEY(sweep_id) REFERENCES sweeps (id),
	UNIQUE (sweep_id, number)
);
CREATE TABLE checkpoints (
	id INTEGER NOT NULL,
	run_id VARCHAR NOT NULL,
	attempt INTEGER NOT NULL,
	step INTEGER NOT NULL,
	path VARCHAR NOT NULL,
	size_bytes INTEGER NOT NULL,
	digest VARCHAR NOT NULL,
	reason VARCHAR NOT NULL,
	val_loss FLOAT,
	created_at FLOAT NOT NULL,
	removed_at FLOAT, copy_url VARCHAR, copy_state VARCHAR, copy_at FLOAT, copy_error VARCHAR,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES runs (id),
	UNIQUE (run_id, attempt, step)
);
CREATE INDEX ix_checkpoints_run_step ON checkpoints (run_id, step);
CREATE TABLE transitions (
	id INTEGER NOT NULL,
	run_id VARCHAR NOT NULL,
	attempt INTEGER NOT NULL,
	old VARCHAR,
	new VARCHAR NOT NULL,
	cause VARCHAR NOT NULL,
	message VARCHAR,
	actor VARCHAR NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_transitions_run_id ON transitions (run_id);
CREATE TABLE "requests" (
	id INTEGER NOT NULL,
	run_id VARCHAR NOT NULL,
	attempt INTEGER NOT NULL,
	kind VARCHAR NOT NULL,
	message VARCHAR,
	actor VARCHAR NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_runs_forked_from ON runs (forked_from);
CREATE TABLE node_notes (
	id INTEGER NOT NULL,
	node VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	message VARCHAR NOT NULL,
	actor VARCHAR NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX ix_node_notes_node ON node_notes (node);
CREATE INDEX ix_attempts_exited_at ON attempts (exited_at);
CREATE TABLE rollouts (
	number INTEGER NOT NULL,
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	spec JSON NOT NULL,
	tags JSON NOT NULL,
	provenance JSON NOT NULL,
	outcome VARCHAR,
	reason VARCHAR,
	created_at FLOAT NOT NULL,
	ended_at FLOAT,
	archived BOOLEAN NOT NULL, note VARCHAR DEFAULT '' NOT NULL, submitted_by VARCHAR DEFAULT 'user' NOT NULL,
	PRIMARY KEY (number),
	UNIQUE (id)
);
CREATE INDEX ix_rollouts_name ON rollouts (name);
CREATE INDEX ix_rollouts_project ON rollouts (project);
CREATE TABLE rollout_stages (
	id INTEGER NOT NULL,
	rollout_id VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	name VARCHAR NOT NULL,
	outcome VARCHAR,
	reason VARCHAR,
	started_at FLOAT,
	ended_at FLOAT,
	PRIMARY KEY (id),
	FOREIGN KEY(rollout_id) REFERENCES rollouts (id),
	UNIQUE (rollout_id, number)
);
CREATE INDEX ix_rollout_stages_rollout_id ON rollout_stages (rollout_id);
CREATE TABLE rollout_runs (
	id INTEGER NOT NULL,
	rollout_id VARCHAR NOT NULL,
	stage INTEGER NOT NULL,
	role VARCHAR NOT NULL,
	run_id VARCHAR NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(rollout_id) REFERENCES rollouts (id),
	FOREIGN KEY(run_id) REFERENCES runs (id),
	UNIQUE (rollout_id, stage, role),
	UNIQUE (run_id)
);
CREATE INDEX ix_rollout_runs_rollout_id ON rollout_runs (rollout_id);
CREATE TABLE gate_verdicts (
	id INTEGER NOT NULL,
	rollout_id VARCHAR NOT NULL,
	stage INTEGER NOT NULL,
	gate VARCHAR NOT NULL,
	verdict VARCHAR NOT NULL,
	expected VARCHAR NOT NULL,
	seen VARCHAR NOT NULL,
	value FLOAT,
	at_least FLOAT,
	at_most FLOAT,
	unit VARCHAR,
	run_id VARCHAR,
	step INTEGER,
	at FLOAT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(rollout_id) REFERENCES rollouts (id),
	FOREIGN KEY(run_id) REFERENCES runs (id),
	UNIQUE (rollout_id, stage, gate)
);
CREATE INDEX ix_gate_verdicts_rollout_id ON gate_verdicts (rollout_id);
CREATE INDEX ix_requests_run_id ON requests (run_id);
CREATE INDEX ix_trials_run_id ON trials (run_id);
CREATE INDEX ix_trials_sweep_id ON trials (sweep_id);
CREATE TABLE provenance (
	sha256 VARCHAR NOT NULL,
	data JSON NOT NULL,
	PRIMARY KEY (sha256)
);
CREATE INDEX ix_runs_provenance_sha256 ON runs (provenance_sha256);
CREATE TRIGGER provenance_unused AFTER DELETE ON runs WHEN OLD.provenance_sha256 IS NOT NULL BEGIN DELETE FROM provenance WHERE sha256 = OLD.provenance_sha256 AND NOT EXISTS (SELECT 1 FROM runs WHERE provenance_sha256 = OLD.provenance_sha256); END;
CREATE TABLE "idempotency_keys" (
	"key" VARCHAR NOT NULL,
	request_sha256 VARCHAR NOT NULL,
	status INTEGER NOT NULL,
	made VARCHAR NOT NULL,
	created_at FLOAT NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE access_tokens (
	name VARCHAR NOT NULL,
	role VARCHAR NOT NULL,
	sha256 VARCHAR NOT NULL,
	created_at FLOAT NOT NULL,
	expires_at FLOAT,
	revoked_at FLOAT, gpu_hours FLOAT,
	PRIMARY KEY (name),
	UNIQUE (sha256)
);
CREATE TABLE audit (
	id INTEGER NOT NULL,
	at FLOAT NOT NULL,
	name VARCHAR NOT NULL,
	role VARCHAR NOT NULL,
	method VARCHAR NOT NULL,
	path VARCHAR NOT NULL,
	status INTEGER NOT NULL,
	address VARCHAR NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX ix_audit_name ON audit (name);
CREATE TABLE outbox (
	id INTEGER NOT NULL,
	webhook VARCHAR NOT NULL,
	body JSON NOT NULL,
	created_at FLOAT NOT NULL,
	tries INTEGER NOT NULL,
	due_at FLOAT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE quotas (
	project VARCHAR NOT NULL,
	gpus INTEGER NOT NULL,
	changed_by VARCHAR NOT NULL,
	changed_at FLOAT NOT NULL,
	PRIMARY KEY (project)
);
CREATE INDEX ix_sweeps_seeds_of ON sweeps (seeds_of);
CREATE TABLE node_until (
	node VARCHAR NOT NULL,
	until FLOAT NOT NULL,
	PRIMARY KEY (node)
);
INSERT INTO alembic_version VALUES ('0019');
