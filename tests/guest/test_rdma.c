/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs work in the guest: the two soft-RoCE devices are there, and one-sided READ and WRITE between them move the
 * right bytes in as many packets as they must, counted on the wire between them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/guest/verbs_pair.h"

#define NEAR_DEVICE "rxe0"
#define FAR_DEVICE  "rxe1"
#define NEAR_WIRE   "kvroce0"
#define FAR_WIRE    "kvroce1"
#define SIZE        65536
#define TRANSFERS   200

/* Neighbour discovery adds some packets, and what an emulated processor was too slow to answer is sent again: at
 * most so many times as there must be. */
#define AT_MOST 2

/* Packets that an end of the wire has sent so far. */
static uint64_t packets_of(const char *wire)
{
	char path[128];
	uint64_t packets = 0;
	snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/tx_packets", wire);
	FILE *file = fopen(path, "re");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%lu", &packets), 1);
	fclose(file);
	return packets;
}

static int open_pair(void **state)
{
	static struct verbs_pair pair;
	*state = &pair;
	return verbs_pair_open(&pair, NEAR_DEVICE, FAR_DEVICE, SIZE);
}

static int close_pair(void **state)
{
	verbs_pair_close(*state);
	return 0;
}

static void both_devices_are_found(void **state)
{
	int count = 0, found = 0;
	(void)state;
	struct ibv_device **devices = ibv_get_device_list(&count);
	assert_non_null(devices);
	for (int i = 0; i < count; i++) {
		const char *name = ibv_get_device_name(devices[i]);
		found += strcmp(name, NEAR_DEVICE) == 0 || strcmp(name, FAR_DEVICE) == 0;
	}
	ibv_free_device_list(devices);
	assert_int_equal(found, 2);
}

static void fill(unsigned char *memory, unsigned int seed)
{
	for (size_t i = 0; i < SIZE; i++)
		memory[i] = (unsigned char)(i * 7 + seed);
}

/* Transfer again and again, with new bytes each time; the packets of both ends go to sent and to stdout. */
static void transfer_and_count(struct verbs_pair *pair, enum ibv_wr_opcode operation, uint64_t sent[2])
{
	unsigned char *source = operation == IBV_WR_RDMA_READ ? pair->far.memory : pair->near.memory;
	uint64_t before[2] = {packets_of(NEAR_WIRE), packets_of(FAR_WIRE)};
	for (unsigned int i = 0; i < TRANSFERS; i++) {
		fill(source, i);
		assert_int_equal(verbs_pair_transfer(pair, operation, SIZE, pair->far.region->rkey), IBV_WC_SUCCESS);
		assert_memory_equal(pair->near.memory, pair->far.memory, SIZE);
	}
	sent[0] = packets_of(NEAR_WIRE) - before[0];
	sent[1] = packets_of(FAR_WIRE) - before[1];
	printf("%d x %s of %d bytes, mtu %d: %lu packets from the near end, %lu from the far end\n", TRANSFERS,
	       operation == IBV_WR_RDMA_READ ? "READ" : "WRITE", SIZE, 128 << pair->near.mtu, sent[0], sent[1]);
}

static uint64_t packets_of_data(const struct verbs_pair *pair)
{
	uint64_t mtu = 128u << pair->near.mtu;
	return TRANSFERS * ((SIZE + mtu - 1) / mtu);
}

static void read_moves_bytes_in_counted_packets(void **state)
{
	struct verbs_pair *pair = *state;
	uint64_t sent[2];
	transfer_and_count(pair, IBV_WR_RDMA_READ, sent);
	assert_in_range(sent[0], TRANSFERS, AT_MOST * TRANSFERS);
	assert_in_range(sent[1], packets_of_data(pair), AT_MOST * packets_of_data(pair));
}

static void write_moves_bytes_in_counted_packets(void **state)
{
	struct verbs_pair *pair = *state;
	uint64_t sent[2];
	transfer_and_count(pair, IBV_WR_RDMA_WRITE, sent);
	assert_in_range(sent[0], packets_of_data(pair), AT_MOST * packets_of_data(pair));
	/* one acknowledgement answers a transfer or several packets of one, as the receiver likes */
	assert_in_range(sent[1], TRANSFERS, AT_MOST * packets_of_data(pair));
}

static void wrong_key_is_refused(void **state)
{
	struct verbs_pair *pair = *state;
	uint32_t wrong = pair->far.region->rkey ^ 0x5500;
	assert_int_equal(verbs_pair_transfer(pair, IBV_WR_RDMA_READ, 64, wrong), IBV_WC_REM_ACCESS_ERR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(both_devices_are_found),
	        cmocka_unit_test_setup_teardown(read_moves_bytes_in_counted_packets, open_pair, close_pair),
	        cmocka_unit_test_setup_teardown(write_moves_bytes_in_counted_packets, open_pair, close_pair),
	        cmocka_unit_test_setup_teardown(wrong_key_is_refused, open_pair, close_pair),
	};
	setvbuf(stdout, NULL, _IOLBF, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
