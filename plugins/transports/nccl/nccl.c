/*
 * plugins/transports/nccl - two-sided, by ncclSend and ncclRecv between GPUs.
 *
 *   source                                             target
 *   reserve   send of k - Ds is over             release  an event on the caller's stream
 *   write     send slot k mod Ds                 post_recv  behind the event of k - D:
 *   post_send behind the caller's stream:                   ncclRecv into slot k mod D
 *             ncclSend  - - - rendezvous - - - >  wait     the caller's stream, behind its event
 *
 * Nothing crosses for a release: the next receive is the credit.  Both kernels hold their blocks
 * of the GPU until they have met, at most max_ctas of them each, so the core issues in the one
 * order of law 7 (HD_TRANSPORT_SERIAL) and posts what depends on each other as one group.
 */
#include "nccl_link.h"

static hd_status check(struct hd_transport *instance, char reason[NCCL_REASON_BYTES])
{
    (void)instance;
    (void)reason;
    return HD_OK;
}

static uint64_t arena_bytes(const struct nccl_lane *lane)
{
    return lane->turn.slot_count * lane->stride_bytes;
}

static hd_status prepare(struct hd_transport *instance, struct nccl_lane *lane)
{
    const hd_status status = nccl_cuda(
        instance, lane, instance->cuda.cudaMalloc((void **)&lane->slots, arena_bytes(lane)),
        "cudaMalloc");

    if (status == HD_OK) {
        turn_account(&instance->turn, (int64_t)arena_bytes(lane), "transfer");
    }
    return status;
}

static void finish(struct hd_transport *instance, struct nccl_lane *lane)
{
    instance->cuda.cudaFree(lane->slots);
    turn_account(&instance->turn, -(int64_t)arena_bytes(lane), "transfer");
    lane->slots = NULL;
}

static void *slot_of(const struct nccl_lane *lane, uint64_t sequence)
{
    return lane->slots + sequence % lane->turn.slot_count * lane->stride_bytes;
}

static hd_status send_one(struct hd_transport *instance, struct nccl_lane *lane, uint64_t sequence)
{
    return nccl_begun(instance, lane,
                      instance->nccl.ncclSend(slot_of(lane, sequence), lane->turn.channel->bytes,
                                              ncclUint8, NCCL_TARGET, lane->comm, lane->stream),
                      "ncclSend");
}

static hd_status receive_one(struct hd_transport *instance, struct nccl_lane *lane,
                             uint64_t sequence)
{
    const uint64_t slot = sequence % lane->turn.slot_count;
    hd_status status = HD_OK;

    if (sequence >= lane->turn.slot_count && lane->is_freed[slot]) {
        status = nccl_cuda(instance, lane,
                           instance->cuda.cudaStreamWaitEvent(lane->stream, lane->freed[slot], 0),
                           "cudaStreamWaitEvent");
    }
    if (status != HD_OK) {
        return status;
    }
    return nccl_begun(instance, lane,
                      instance->nccl.ncclRecv(slot_of(lane, sequence), lane->turn.channel->bytes,
                                              ncclUint8, NCCL_SOURCE, lane->comm, lane->stream),
                      "ncclRecv");
}

/* The event stands behind the receive since that was posted. */
static hd_status await(struct hd_transport *instance, struct nccl_lane *lane, uint64_t sequence,
                       cudaStream_t stream)
{
    (void)instance;
    (void)lane;
    (void)sequence;
    (void)stream;
    return HD_OK;
}

static hd_status release_one(struct hd_transport *instance, struct nccl_lane *lane,
                             uint64_t sequence)
{
    (void)instance;
    (void)lane;
    (void)sequence;
    return HD_OK;
}

/* A send that is over has met its receive: nothing more crosses. */
static hd_status await_credit(struct hd_transport *instance, struct nccl_lane *lane)
{
    (void)instance;
    (void)lane;
    return HD_OK;
}

static const struct nccl_mode mode = {.name = "nccl",
                                      .check = check,
                                      .prepare = prepare,
                                      .finish = finish,
                                      .send = send_one,
                                      .receive = receive_one,
                                      .await = await,
                                      .release = release_one,
                                      .await_credit = await_credit};

static hd_status open_two_sided(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    return nccl_open(setup, &mode, out);
}

static const struct hd_transport_ops ops = NCCL_OPS(open_two_sided);

static const struct hd_option options[] = {
    NCCL_OPTION_ROWS,
    {.name = "max_ctas",
     .initial = "1",
     .range = "1 | 2 | 4 | 8",
     .help = "Thread blocks that each transfer may hold; NCCL rounds other numbers up.",
     .type = HD_OPTION_INTEGER},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities =
        HD_TRANSPORT_CUDA | HD_TRANSPORT_MANY_HOSTS | HD_TRANSPORT_UNBLOCKS | HD_TRANSPORT_SERIAL,
    .name = "nccl",
    .summary = "two-sided sends of NCCL between GPUs, a communicator and a stream per channel",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "NCCL 2.28 or newer, ncclSend and ncclRecv",
    .ops = &ops,
};
