# SPDX-License-Identifier: Apache-2.0
"""The worker side of a connector as far as it records: where each kind of event comes from."""

import logging
import time

from kvprobe._connector_stats import MooncakeKVConnectorStats, get_kv_connector_stats

logger = logging.getLogger("kvprobe.stats")


class MooncakeConnectorWorker:
    """Sends blocks with a transfer engine and records what became of it.

    engine: has batch_transfer_sync_write(session, src_ptrs, dst_ptrs, lengths) -> 0 or a negative code.
    request_blocks: async (worker_addr, pull_metas) -> a mapping whose "status" is "ERROR" if the peer failed; only
    the receiving side needs it.
    reqs_need_send: request id -> an object with expire_time, of time.perf_counter(): blocks that wait to be fetched.
    finished_sending_reqs: ids of the requests whose blocks are sent.
    """

    def __init__(self, engine=None, request_blocks=None):
        self.engine = engine
        self.request_blocks = request_blocks
        self.xfer_stats = MooncakeKVConnectorStats()
        self.reqs_need_send = {}
        self.finished_sending_reqs = set()

    # --- the sending side

    def _send_blocks(self, remote_session, src_ptrs, dst_ptrs, lengths):
        """One batched write into the peer's registered memory. Returns the engine's code."""
        begin = time.perf_counter()
        code = self.engine.batch_transfer_sync_write(remote_session, src_ptrs, dst_ptrs, lengths)
        duration = time.perf_counter() - begin
        if code == 0:
            self.xfer_stats.record_transfer(
                duration_s=duration, total_bytes=sum(lengths), num_descs=len(src_ptrs)
            )
        else:
            self.xfer_stats.record_failed_transfer()
            logger.warning("sending %d blocks to %s failed: %s", len(src_ptrs), remote_session, code)
        return code

    send_blocks = _send_blocks

    async def fetch_finished_sending_reqs(self):
        """The ids of requests whose blocks can be freed: those that are sent, and those that nobody has fetched in
        time, each of which is recorded as expired."""
        finished, self.finished_sending_reqs = self.finished_sending_reqs, set()
        now = time.perf_counter()
        expired = [req_id for req_id, meta in self.reqs_need_send.items() if meta.expire_time < now]
        for req_id in expired:
            del self.reqs_need_send[req_id]
            self.xfer_stats.record_kv_expired_req()
            logger.warning("the blocks of request %s were not fetched in time", req_id)
        return finished.union(expired)

    # --- the receiving side

    async def receive_kv_from_single_worker(self, worker_addr, pull_metas):
        """Ask one peer for blocks. False, and one failed receive, if it answers ERROR or there is no answer."""
        try:
            reply = await self.request_blocks(worker_addr, pull_metas)
        except Exception as error:  # noqa: BLE001 - whatever it is, this peer's blocks have not come
            logger.warning("receiving from %s failed: %r", worker_addr, error)
            self.xfer_stats.record_failed_recv()
            return False
        if reply["status"] == "ERROR":
            logger.warning("%s failed to send: %s", worker_addr, reply.get("err_msg", "no reason given"))
            self.xfer_stats.record_failed_recv()
            return False
        return True

    # --- each step

    def get_kv_connector_stats(self):
        """What was recorded since the last call; None if that is nothing."""
        return get_kv_connector_stats(self.xfer_stats)
