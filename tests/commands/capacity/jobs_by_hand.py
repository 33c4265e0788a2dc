"""Round costs and a small job, whose plans are worked out by hand."""

from gigl_loader.commands.capacity.needs import Costs, Job

COSTS = Costs(
    machine="test", date="2026-01-01", batch_s=1e-3, edge_s=1e-7, node_s=0.0, row_byte_s=0.0,
    asked_batch_s=2e-3, asked_edge_s=2e-7, asked_rows_s=3e-3, asked_row_s=3e-7, asked_byte_s=1e-9,
    cached_batch_s=0.0, cached_row_s=1e-7, cached_byte_s=1e-10,
    kept_batch_s=0.0, kept_row_s=5e-8, kept_byte_s=1e-10,
    sent_batch_s=1e-3, sent_edge_s=1e-8, sent_rows_s=2e-3, sent_row_s=1e-7, sent_byte_s=1e-9,
    received_batch_s=1e-3, received_edge_s=1e-8, received_rows_s=2e-3, received_row_s=1e-7,
    received_byte_s=1e-9,
    plain_s_per_gb=0.5, tls_s_per_gb=2.0, plain_gb_per_s=2.0, tls_gb_per_s=0.5, link_s_per_gb=1.0,
    link_gbit=0.0, process_bytes=3e8, supervisor_bytes=5e7, worker_bytes=1e7, library_bytes=2e8,
    process_start_s=4.0, supervisor_start_s=1.0, worker_start_s=0.1, load_s_per_gb=0.5, spread=0.1,
)  # fmt: skip
JOB = Job(nodes=1e6, edges=2e7, dim=100, num_neighbors=(15, 10), batch_size=1000, machines=1)
