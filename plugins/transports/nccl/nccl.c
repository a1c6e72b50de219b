/*
 * plugins/transports/nccl - two-sided, by ncclSend and ncclRecv between GPUs.
 *
 *   source                                             target
 *   reserve   send of k - Ds is over             release  an event on the caller's stream
 *   write     send slot k mod Ds                 post_recv  behind the event of k - D:
 *   post_send behind the caller's stream:                   ncclRecv into slot k mod D
 *             ncclSend  - - - rendezvous - - - >  wait     the caller's stream, behind its event
 *
 * A release sends nothing: the next receive is the credit.  Both kernels hold their thread blocks,
 * at most max_ctas each, until they have met.  So the core posts in the one order of law 7
 * (HD_TRANSPORT_SERIAL), and posts transfers that depend on each other as one group.
 */
#include "nccl_link.h"

static uint64_t nccl_arena_bytes(const struct nccl_channel *channel)
{
    return channel->book.slot_count * channel->stride_bytes;
}

static hd_status nccl_prepare(struct hd_transport *instance, struct nccl_channel *channel)
{
    BOOK_TRY(NCCL_CUDA(instance, channel, cudaMalloc, (void **)&channel->slots,
                       nccl_arena_bytes(channel)));
    book_account(&instance->book, (int64_t)nccl_arena_bytes(channel), "transfer");
    return HD_OK;
}

static void nccl_finish(struct hd_transport *instance, struct nccl_channel *channel)
{
    instance->cuda.cudaFree(channel->slots);
    book_account(&instance->book, -(int64_t)nccl_arena_bytes(channel), "transfer");
    channel->slots = NULL;
}

static void *nccl_slot_of(const struct nccl_channel *channel, uint64_t sequence)
{
    return channel->slots + sequence % channel->book.slot_count * channel->stride_bytes;
}

static hd_status nccl_send_one(struct hd_transport *instance, struct nccl_channel *channel,
                               uint64_t sequence)
{
    return NCCL_BEGUN(instance, channel, ncclSend, nccl_slot_of(channel, sequence),
                      channel->book.shape->bytes, ncclUint8, NCCL_TARGET, channel->comm,
                      channel->stream);
}

static hd_status nccl_receive_one(struct hd_transport *instance, struct nccl_channel *channel,
                                  uint64_t sequence)
{
    const uint64_t slot = sequence % channel->book.slot_count;

    if (sequence >= channel->book.slot_count && channel->is_freed[slot]) {
        BOOK_TRY(NCCL_CUDA(instance, channel, cudaStreamWaitEvent, channel->stream,
                           channel->freed[slot], 0));
    }
    return NCCL_BEGUN(instance, channel, ncclRecv, nccl_slot_of(channel, sequence),
                      channel->book.shape->bytes, ncclUint8, NCCL_SOURCE, channel->comm,
                      channel->stream);
}

static const struct nccl_mode nccl_mode = {.name = "nccl",
                                           .prepare = nccl_prepare,
                                           .finish = nccl_finish,
                                           .send = nccl_send_one,
                                           .receive = nccl_receive_one};

static hd_status nccl_open_two_sided(const struct hd_transport_setup *setup,
                                     struct hd_transport **out)
{
    return nccl_open(setup, &nccl_mode, out);
}

static const struct hd_transport_ops nccl_ops = NCCL_OPS(nccl_open_two_sided);

static const struct hd_option nccl_options[] = {
    NCCL_OPTION_ROWS,
    {.name = "max_ctas",
     .initial = "1",
     .range = "1 | 2 | 4 | 8",
     .help = "Thread blocks that each transfer may hold; NCCL rounds other values up.",
     .type = HD_OPTION_INTEGER},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof nccl_options / sizeof nccl_options[0],
    .options = nccl_options,
    .capabilities =
        HD_TRANSPORT_CUDA | HD_TRANSPORT_MANY_HOSTS | HD_TRANSPORT_UNBLOCKS | HD_TRANSPORT_SERIAL,
    .name = "nccl",
    .summary = "two-sided sends of NCCL between GPUs, a communicator and a stream per channel",
    .source = "NCCL 2.28 or newer, ncclSend and ncclRecv",
    .ops = &nccl_ops,
};
