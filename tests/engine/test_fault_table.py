"""Each row of the fault tables in the docs has a test that exists."""

from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "guide" / "faults.md"

_END = "engine/test_faults.py::test_the_end_of_the_trainer_is_the_end_of_its_workers"
_LOST = "graph_store/test_survived_servers.py::test_servers_that_are_lost"
_SIGNALS = "graph_store/test_signals.py::test_servers_that_are_late_stopped_and_told_to_end"
_CHANGED = "loader/test_changed_files.py"
SURVIVED = {
    "a worker is killed or crashes": [
        "engine/test_survived.py::test_a_worker_killed_at_drawn_batches",
        "engine/test_survived.py::test_what_one_worker_stumbles_over_the_next_one_samples",
    ],
    "the supervisor of the workers is killed": [
        "engine/test_survived.py::test_a_worker_killed_at_drawn_batches",
        "engine/test_survived.py::test_a_supervisor_killed_again_and_again",
    ],
    "a supervisor that waits for the next loader is killed or stopped": [
        "sources/workers/test_resting.py::test_one_that_died_or_stands_still_is_replaced_in_silence"
    ],
    "a worker hangs or is stopped (`SIGSTOP`)": [
        "engine/test_survived.py::test_a_worker_that_is_stopped_is_replaced"
    ],
    "a batch crashes or hangs every worker that samples it": [
        "engine/test_survived.py::test_a_batch_that_ends_every_worker"
    ],
    "a worker is killed by `SIGKILL` or `SIGTERM` from outside": [
        "sources/workers/test_recovery.py::test_kills_from_outside_end_no_epoch_before_the_restarts_are_used_up"
    ],
    "a worker of another rank dies": ["loader/test_ranks.py::test_faults_of_other_ranks"],
    "a worker of another rank is stopped": ["loader/test_ranks.py::test_faults_of_other_ranks"],
    "the network between two ranks fails": [
        "sources/workers/test_peers.py::test_a_link_that_is_cut"
    ],
    "a worker or supervisor is killed while a loader is built": [
        "engine/test_survived.py::test_a_supervisor_killed_while_a_loader_is_built",
        "sources/workers/test_pool.py::test_what_is_killed_while_the_pool_starts_is_started_again",
    ],
    "the network fails while ranks build a loader": [
        "sources/workers/test_rendezvous.py::test_a_link_that_is_cut_while_ranks_meet_costs_its_length"
    ],
    "a worker on a storage server dies or hangs": [
        "graph_store/test_graph_store.py::test_failures_of_workers_reach_the_loop"
    ],
    "a storage server is killed or ends, and is started again": [_LOST],
    "storage servers are restarted one after another, or are lost again while they come back": [
        _LOST,
        "graph_store/test_server_outages.py::test_each_absence_has_a_clock_of_its_own",
    ],
    "a storage server with a replica is killed, server 0 too": [f"{_LOST}[replicas]"],
    "a storage server is killed during `fetch_*` or a constructor": [_LOST],
    "a storage server is stopped longer than `network_timeout`, then resumes": [
        "graph_store/test_jobs.py::test_a_job_that_was_given_up_goes_on_when_it_comes_back_before_another"
    ],
    "the network to a server fails longer than `network_timeout`": [
        "graph_store/test_outages.py::test_a_long_outage_ends_when_the_links_are_renewed",
        "graph_store/test_second_outage.py::test_a_second_outage_is_survived_by_ranks_that_share_producers",
    ],
    "connections are reset, or the network fails briefly": [
        "sources/workers/test_peers.py::test_a_lost_answer_is_asked_for_again",
        "graph_store/test_outages.py::test_lost_connections_cost_no_batch",
        "graph_store/test_outages.py::test_a_short_outage_costs_its_length_and_a_long_one_is_an_error",
    ],
    "a compute process is killed": [
        "graph_store/test_graph_store.py::test_ranks_with_one_key_share_an_epoch",
        "graph_store/test_graph_store.py::test_a_killed_client_frees_its_workers_and_the_next_job_is_served",
    ],
    "`partition_tables` is killed, at any moment": [
        "partitioning/test_killed_runs.py::test_killed_at_drawn_moments_it_ends_with_the_same_bytes",
        "partitioning/test_run.py::test_a_run_that_was_killed_as_it_wrote_its_first_file_goes_on",
    ],
    "partitions are replaced with `overwrite=True` while jobs use them": [
        f"{_CHANGED}::test_overwriting_writes_beside_and_leaves_a_running_job_its_graph"
    ],
    "`/dev/shm` is small or full": ["runtime/memory/test_tensors.py::test_nothing_gets_a_name"],
    "a suspended job is resumed, and its servers later": [
        "runtime/transport/test_caller.py::test_time_in_which_the_asker_is_suspended_is_no_silence"
    ],
    "a compute process is stopped (`SIGSTOP`) and goes on": [
        "graph_store/test_signals.py::test_a_stopped_client_delays_no_other_rank_and_no_other_job"
    ],
    "a job joins while another one of its name is served": [
        "graph_store/test_jobs.py::test_who_cannot_be_of_a_job_is_refused_and_the_next_one_waits"
    ],
    "more jobs join than `--max-jobs`": [
        "graph_store/test_several_jobs.py::test_a_job_beyond_the_most_waits_and_is_told_why"
    ],
    "a compute process, worker or sampler of another job fails": [
        "graph_store/test_several_jobs.py::test_what_happens_to_one_job_is_not_seen_by_another"
    ],
    "storage server 1 or a later one is restarted while ranks join": [_SIGNALS],
    "the wall clock is set back or forth": [
        "graph_store/test_identity.py::test_a_server_whose_clock_is_set_back_has_been_up_all_the_same",
        "batch/test_message.py::test_a_worker_whose_clock_is_set_back_is_busy_all_the_same",
    ],
    "strangers open all connections that they can get": [
        "graph_store/test_strangers.py::test_strangers_at_both_ports_end_no_job"
    ],
    'a training process is killed; the job resumes with `shard="world"`': [
        "examples/test_elastic.py"
    ],
}
"""Faults that cost time alone."""
ERRORS = {
    "a worker is killed or crashes": [
        "engine/test_faults.py::test_a_killed_worker",
        "engine/test_faults.py::test_a_worker_that_ends_while_it_samples",
    ],
    "a worker hangs or is stopped": [
        "engine/test_faults.py::test_a_stopped_worker",
        "engine/test_faults.py::test_a_worker_that_hangs",
    ],
    "a worker does not start": ["engine/test_faults.py::test_a_worker_that_never_gets_ready"],
    "the supervisor is killed": ["engine/test_faults.py::test_a_killed_supervisor"],
    "a sampler raises": ["engine/test_faults.py::test_a_sampler_that_raises"],
    "a sampler or `worker_init_fn` cannot be imported, built or run": [
        "engine/test_faults.py::test_a_sampler_that_cannot_be_built",
        "engine/test_faults.py::test_a_worker_init_fn_that_raises",
    ],
    "`worker_init_fn` cannot be sent to workers": [
        "loader/test_bad_input.py::test_a_worker_init_fn_that_no_worker_can_import"
    ],
    "no shared memory for a batch": ["engine/test_faults.py::test_no_shared_memory_left"],
    "a worker of another rank dies": [
        "loader/test_ranks.py::test_faults_of_other_ranks",
        "sources/workers/test_peers.py::test_who_asks_a_worker_that_is_lost_for_good_hears_why",
    ],
    "a worker of another rank is stopped or cut off": [
        "loader/test_ranks.py::test_faults_of_other_ranks"
    ],
    "another rank is silent as a whole, with `max_restarts` above 0": [
        "loader/test_ranks.py::test_a_rank_that_is_cut_off"
    ],
    'another rank is killed, with `exchange="collective"`': [
        "sources/in_process/test_in_process.py::test_ranks"
    ],
    'another rank is stopped, with `exchange="collective"`': [
        "sources/in_process/test_in_process.py::test_ranks"
    ],
    "another rank is killed": [
        "loader/test_ranks.py::test_a_rank_that_is_killed",
        "loader/test_ranks.py::test_two_partitions_two_ranks",
        "runtime/memory/test_same_host.py::test_a_partition_of_another_process",
    ],
    "another rank is gone when a loader is built": [
        "loader/test_ranks.py::test_a_rank_that_is_killed"
    ],
    "another rank is silent when a loader is built": [
        "loader/test_ranks.py::test_a_rank_that_is_cut_off"
    ],
    "a keyword or an input is bad on one rank only": [
        "loader/options/test_told.py::test_ranks",
        "loader/options/test_told.py::test_a_graph_store",
    ],
    "the same, and the other ranks never build a loader": [
        "loader/options/test_told.py::test_ranks"
    ],
    "another rank cannot start its workers": ["loader/test_ranks.py::test_faults_of_other_ranks"],
    "inference continues on another number of ranks": [
        "inference/test_killed.py::test_another_number_of_ranks_is_an_error_on_all_of_them"
    ],
    "this process may open no more files (`ulimit -n`)": [
        "sources/workers/test_pipe.py::test_descriptors_that_this_process_cannot_have_are_an_error_that_says_so"
    ],
    "this user may start no more processes (`ulimit -u`, which does not limit root)": [
        "sources/workers/test_supervisor.py::test_a_worker_that_cannot_be_forked_is_a_failed_start"
    ],
    "the process that hosts the process group's store is stopped; or gone": [
        "sources/workers/test_rendezvous.py::test_a_store_that_does_not_answer_or_is_gone"
    ],
    "workers cannot listen on this machine's address": [
        "loader/test_ranks.py::test_faults_of_other_ranks"
    ],
    "ranks on several machines, no [security mode](security.md)": [
        "loader/test_ranks.py::test_two_machines"
    ],
    "a loader is built before the process group of a multi-process job": [
        "loader/test_bad_input.py::test_no_process_group"
    ],
    "a loader is used after `shutdown()`": [
        "loader/test_neighbor.py::test_no_seeds_no_batches_and_a_use_after_the_end"
    ],
    "a file of a mapped dataset is changed, or cut short": [
        f"{_CHANGED}::test_an_epoch_does_not_start_over_changed_files",
        f"{_CHANGED}::test_an_epoch_does_not_end_over_changed_files",
        f"{_CHANGED}::test_a_worker_that_reads_past_the_end_names_the_file",
        f"{_CHANGED}::test_ranks_that_sample_together",
        "graph_store/test_service.py::test_a_file_that_changed_ends_the_epochs_of_its_server",
    ],
    "the same with `num_workers=0`, in the middle of a batch": [
        f"{_CHANGED}::test_a_process_that_reads_past_the_end_ends"
    ],
    "a page of a mapped file cannot be read": [
        "sources/workers/test_recovery.py::test_a_worker_that_ends_by_sigbus_names_the_file_that_changed"
    ],
    "the disk is full in `partition_tables`": [
        "partitioning/test_run.py::test_a_full_disk_is_told_and_the_run_goes_on_with_space"
    ],
    "a batch draws more than `channel_size` could hold": [
        "loader/test_unbounded_batches.py",
        "graph_store/test_admitted.py::test_a_batch_that_no_channel_could_hold_is_refused_by_a_server",
    ],
    "a directory of partitions leads out of itself, or its files of edges do not fit each other": [
        "dataset/format/test_outside.py",
        "dataset/format/test_edge_files.py",
    ],
    "a file of `torch.save` is compressed": [
        "runtime/test_files_of_others.py::test_a_compressed_file_is_refused"
    ],
    "a page of a Parquet file is damaged": [
        "partitioning/test_damaged_tables.py::test_pages_that_cannot_be_read_name_the_table"
    ],
    "the log of a Delta table names a file outside of the table": [
        "partitioning/test_versions.py::test_a_log_that_names_a_file_elsewhere_is_refused"
    ],
    "memory is short in `partition_tables`": [
        "partitioning/test_damaged_tables.py::test_a_table_that_is_larger_than_its_file_ends_by_the_limit_of_memory"
    ],
    "a manifest has more than 256 MiB, or object storage sends one without end": [
        "runtime/object_storage/test_fetch.py::test_a_manifest_without_end_is_not_read_into_memory",
        "runtime/object_storage/test_graphs.py::test_a_manifest_of_a_partition_is_not_read_without_bound",
    ],
    "bad input": ["loader/test_bad_input.py"],
    "a loader is dropped without `shutdown()`": [
        "loader/test_neighbor.py::test_a_loader_that_is_dropped_says_so_and_ends_its_workers"
    ],
}
"""Faults that are errors."""
STORE = {
    "a server is not up, or waits for others": [
        "graph_store/test_waiting.py::test_a_server_that_does_not_answer",
        "graph_store/test_waiting.py::test_a_server_that_waits_for_others",
        _SIGNALS,
    ],
    "a compute process does not reach the process group; or its port is taken": [
        "graph_store/test_waiting.py::test_compute_processes_that_do_not_meet"
    ],
    "a server is killed, or told to end": [
        "graph_store/test_graph_store.py::test_a_killed_server_is_an_error_on_every_client",
        _SIGNALS,
    ],
    "server 0 is killed or restarted while ranks join": [
        "graph_store/test_endpoint.py::test_a_server_that_leaves_ends_the_others_and_those_who_join"
    ],
    "a server's machine vanishes, or the network fails for longer": [
        "graph_store/test_scale.py::test_a_server_cut_off_in_mid_epoch_is_named",
        "graph_store/test_outages.py::test_a_short_outage_costs_its_length_and_a_long_one_is_an_error",
    ],
    "a server comes back ten times without a batch in between": [
        "graph_store/test_source.py::test_a_server_that_is_lost_again_and_again_without_a_batch_ends_the_wait"
    ],
    "a server is stopped": [_SIGNALS],
    "a server's worker dies, hangs or raises": [
        "graph_store/test_graph_store.py::test_failures_of_workers_reach_the_loop"
    ],
    "wrong token, another user, or another service at the port": [
        "graph_store/test_graph_store.py::test_a_killed_client_frees_its_workers_and_the_next_job_is_served",
        "graph_store/test_security.py::test_batches_and_workers_speak_tls",
        "runtime/transport/test_users.py::test_another_user_is_refused_by_name",
        "graph_store/test_waiting.py::test_another_service_says_what_it_answered",
    ],
    "a server comes back with another graph, cluster, token or job": [
        "graph_store/test_identity.py::test_a_refusal_that_stays_ends_the_wait_at_once"
    ],
    "an operator ends the job by `gigl-loader stop-job`": [
        "graph_store/test_several_jobs.py::test_a_job_that_is_stopped_ends_with_a_named_error_and_no_other_does"
    ],
    "a loader is beyond `--channel-memory`": [
        "graph_store/test_several_jobs.py::test_a_producer_beyond_the_memory_for_batches_is_refused_with_the_figures"
    ],
    "no security mode, or a weak token, beyond loopback": [
        "graph_store/test_server.py::test_a_server_that_strangers_reach_is_refused_before_it_listens"
    ],
    "the storage master's name means loopback on its machine": [
        "graph_store/test_server.py::test_a_master_whose_name_means_loopback_is_refused"
    ],
    "a process joins a job that runs and is not its own": [
        "graph_store/test_admitted.py::test_a_stranger_adds_no_batch_to_a_job",
        "graph_store/test_admitted.py::test_every_server_knows_who_is_of_a_job",
    ],
    "a number of a job, or a count of jobs, is beyond bounds": [
        "graph_store/test_admitted.py::test_a_count_that_cannot_be_is_refused_by_name"
    ],
    "a process that is no storage server publishes at a rendezvous, or a server more than 1 GiB": [
        "graph_store/test_admitted.py::test_values_at_a_rendezvous_are_of_storage_servers_alone"
    ],
    "more than 64 free ports are asked for in one request": [
        "graph_store/test_service.py::test_ports_beyond_the_limit_are_refused_before_one_is_opened"
    ],
    "an answer that cannot be divided takes a quarter of the server's free memory": [
        "graph_store/test_partition_answers.py::test_answers_that_no_client_can_divide_are_bounded_by_the_memory"
    ],
    "a response of a server about edges does not fit together": [
        "graph_store/test_lookup.py::test_edges_of_a_false_server_are_refused_by_name"
    ],
    "seeds, options or workers that no loader sends": [
        "graph_store/test_admitted.py::test_a_server_checks_what_a_loader_checks"
    ],
    "a sampler that servers may not import": [
        "graph_store/test_security.py::test_a_server_imports_what_it_has_leave_for"
    ],
}
"""Errors of a graph store."""
TRAINER = {
    "calls `shutdown()`, also in mid-epoch, also twice": [
        "engine/test_faults.py::test_shutdown_in_the_middle_of_an_epoch"
    ],
    "calls `release_workers()` after that": [
        "sources/workers/test_resting.py::test_the_next_loader_has_the_supervisor_and_other_workers"
    ],
    "ends normally, by an exception, Ctrl-C, `SIGTERM` or `SIGKILL`": [
        f"{_END}[end]",
        f"{_END}[exception]",
        f"{_END}[Ctrl-C]",
        f"{_END}[SIGTERM]",
        f"{_END}[SIGKILL]",
    ],
    "is killed while a child that it forked lives on, or while the supervisor is stopped": [
        f"{_END}[fork]",
        f"{_END}[stopped]",
    ],
    "is killed while workers start": [f"{_END}[early]"],
    "leaves a graph store, or outlives its servers": [
        "graph_store/test_epochs.py::test_a_cluster_from_start_to_end",
        _SIGNALS,
    ],
}
"""Ends of the trainer."""


def _rows() -> list[list[str]]:
    """Return the first column of each table of faults."""
    tables, lines = list[list[str]](), PAGE.read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith(("| fault |", "| the trainer |")):
            tables.append([])
        elif tables and before.startswith("|") and line.startswith("| ") and line[2] != "-":
            tables[-1].append(line.strip("| ").split(" | ")[0])
    return [rows for rows in tables if rows]


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    assert _rows() == [list(table) for table in (SURVIVED, ERRORS, STORE, TRAINER)]


def test_the_tests_are_there() -> None:
    for table in (SURVIVED, ERRORS, STORE, TRAINER):
        for name in (name for names in table.values() for name in names):
            path, _, test = name.partition("::")
            function, _, case = test.partition("[")
            source = (TESTS / path).read_text()
            assert not function or f"def {function}(" in source, name
            assert not case or f'"{case.rstrip("]")}"' in source, name
