/* nccl_link/check.c - what this machine and these ranks must have, each condition by its name. */
#include "nccl_link.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 8, OTHER_STREAMS = 2 };

#define BYTES_MAX (UINT64_C(1) << 46) /* half of what a process can address */

static hd_status refuse(struct hd_transport *instance, hd_status status, uint32_t channel,
                        const char *reason)
{
    const struct nccl_fault fault = {status, NCCL_NONE, channel, 0};
    return nccl_fail(instance, &fault, "%s: %s", instance->mode->name, reason);
}

static hd_status check_channels(struct hd_transport *instance,
                                const struct hd_transport_setup *setup)
{
    const uint32_t rank_count = setup->host->rank_count;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        if (channel->source == channel->target || channel->source >= rank_count ||
            channel->target >= rank_count || channel->depth == 0 || channel->bytes == 0 ||
            channel->send_depth == 0 || channel->send_depth > channel->depth) {
            return refuse(instance, HD_INVALID, i,
                          "a channel leads from one rank to another and has depth and bytes");
        }
        if (channel->bytes > BYTES_MAX || channel->depth > BYTES_MAX / channel->bytes) {
            return refuse(instance, HD_NO_MEMORY, i,
                          "no device has so much memory: plan fewer slots or smaller microbatches");
        }
    }
    return HD_OK;
}

static hd_status check_setup(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    const uint32_t align = setup->alignment_bytes;

    if (setup->memory != HD_MEMORY_CUDA) {
        return refuse(instance, HD_UNSUPPORTED, NCCL_NONE,
                      "it moves device memory; choose kernels that compute on a GPU, or another "
                      "transport (shm, ucx_tag, ucx_put) for these");
    }
    if (align < 64 || (align & (align - 1)) != 0) {
        return refuse(instance, HD_UNSUPPORTED, NCCL_NONE,
                      "slots are aligned to a power of two from 64 bytes");
    }
    return check_channels(instance, setup);
}

static const char *text_option(const struct hd_host *host, uint32_t option, const char *initial)
{
    return host->option_count > option && host->options[option].text != NULL
               ? host->options[option].text
               : initial;
}

static hd_status load(struct hd_transport *instance)
{
    const struct hd_host *host = instance->host;
    const char *runtime = text_option(host, NCCL_OPTION_RUNTIME, "libcudart.so.13");
    const char *library = text_option(host, NCCL_OPTION_LIBRARY, "libnccl.so.2");

    hd_status status = cuda_load(&instance->cuda, runtime);
    if (status != HD_OK) {
        return refuse(instance, status, NCCL_NONE, instance->cuda.reason);
    }
    status = nccl_load(&instance->nccl, library);
    if (status != HD_OK) {
        return refuse(instance, status, NCCL_NONE, instance->nccl.reason);
    }
    return HD_OK;
}

/* The run's log says which library it really was. */
static void say_library(const struct hd_transport *instance)
{
    char version[16], text[2 * NCCL_PATH_BYTES + 128];

    snprintf(text, sizeof text, "%s: NCCL %s (%s), CUDA runtime %d.%d (%s), device %u",
             instance->mode->name, nccl_version_text(instance->nccl.version, version),
             instance->nccl.path, instance->cuda.runtime_version / 1000,
             instance->cuda.runtime_version % 1000 / 10, instance->cuda.path, instance->device);
    instance->host->log(instance->host->context, 2, text);
}

void nccl_account(const struct hd_transport *instance, int64_t bytes)
{
    const struct hd_host *host = instance->host;

    if (host->size >= sizeof *host && host->account != NULL) {
        host->account(host->context, bytes, "transfer");
    }
}

static hd_status choose_device(struct hd_transport *instance,
                               const struct hd_transport_setup *setup)
{
    char reason[160];

    if (setup->device >= (uint32_t)instance->cuda.device_count) {
        snprintf(reason, sizeof reason,
                 "rank %u would use GPU %u and there are %d: NCCL wants a GPU for each rank; use "
                 "fewer ranks, or transport cuda_ipc",
                 instance->host->rank, setup->device, instance->cuda.device_count);
        return refuse(instance, HD_UNSUPPORTED, NCCL_NONE, reason);
    }
    instance->device = setup->device;
    return nccl_use_device(instance);
}

hd_status nccl_check(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    hd_status status = check_setup(instance, setup);

    if (status == HD_OK) {
        status = load(instance);
    }
    if (status == HD_OK) {
        status = choose_device(instance, setup);
    }
    if (status == HD_OK) {
        say_library(instance);
    }
    return status;
}

/* A stream that waits holds its queue of the GPU, and whatever shares that queue waits along. */
static hd_status check_queues(const struct hd_transport *instance, char reason[NCCL_REASON_BYTES])
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long queues = text != NULL ? strtol(text, NULL, 10) : CONNECTIONS;
    const uint32_t needed = instance->lane_count + OTHER_STREAMS;

    if (queues >= (long)needed) {
        return HD_OK;
    }
    snprintf(reason, NCCL_REASON_BYTES,
             "CUDA_DEVICE_MAX_CONNECTIONS: the GPU of rank %u has %ld hardware queues (%s) and %u "
             "are needed: one for each of its %u channels, one to compute and one to copy; set it "
             "to %u or more, 32 at most",
             instance->host->rank, queues, text != NULL ? "as set" : "CUDA's default", needed,
             instance->lane_count, needed);
    return HD_UNSUPPORTED;
}

hd_status nccl_check_mode(struct hd_transport *instance)
{
    char reason[NCCL_REASON_BYTES];
    hd_status status = check_queues(instance, reason);

    if (status == HD_OK) {
        status = instance->mode->check(instance, reason);
    }

    return status != HD_OK ? refuse(instance, status, NCCL_NONE, reason) : HD_OK;
}

/* --- cards ------------------------------------------------------------------------------- */

/* Of all that both ends must agree on. */
static uint64_t digest_of(const struct hd_transport *instance)
{
    uint64_t digest = 0xcbf29ce484222325ull ^ instance->alignment_bytes;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct hd_channel *channel = instance->channels[i];
        const uint64_t words[] = {channel->boundary, channel->direction, channel->source,
                                  channel->target,   channel->depth,     channel->send_depth,
                                  channel->bytes};
        for (size_t word = 0; word < sizeof words / sizeof words[0]; word++) {
            digest = (digest ^ words[word]) * 0x100000001b3ull;
            digest ^= digest >> 29;
        }
    }
    return digest;
}

/* Which start of which machine this is; zero where the kernel does not say. */
static void read_boot(uint64_t boot[2])
{
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[40] = "";
    unsigned digits = 0;

    if (file >= 0) {
        const ssize_t count = read(file, text, sizeof text - 1);
        close(file);
        for (ssize_t i = 0; i < count && digits < 32; i++) {
            const char *hex = strchr("0123456789abcdef", text[i]);
            if (hex != NULL && text[i] != '\0') {
                boot[digits / 16] = boot[digits / 16] << 4 | (uint64_t)(hex - "0123456789abcdef");
                digits++;
            }
        }
    }
}

void nccl_introduce(struct hd_transport *instance, struct nccl_card *card)
{
    card->magic = NCCL_MAGIC;
    card->digest = digest_of(instance);
    card->nccl_version = instance->nccl.version;
    card->device = (int32_t)instance->device;
    read_boot(card->boot);
    if (card->status == HD_OK &&
        instance->cuda.cudaDeviceGetPCIBusId(card->pci, sizeof card->pci, (int)instance->device) !=
            cudaSuccess) {
        snprintf(card->pci, sizeof card->pci, "device %u", instance->device);
    }
}

static hd_status check_neighbour(struct hd_transport *instance, const struct nccl_card *own,
                                 const struct nccl_card *card, uint32_t rank)
{
    const struct nccl_fault unsupported = {HD_UNSUPPORTED, rank, NCCL_NONE, 0};
    const int is_here = memcmp(own->boot, card->boot, sizeof own->boot) == 0;
    char version[16], other[16];

    if (card->nccl_version != own->nccl_version) {
        return nccl_fail(instance, &unsupported,
                         "rank %u has NCCL %s and this rank %s: NCCL speaks only with its own "
                         "version",
                         rank, nccl_version_text(card->nccl_version, other),
                         nccl_version_text(own->nccl_version, version));
    }
    if (is_here && strcmp(own->pci, card->pci) == 0 &&
        getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL) {
        return nccl_fail(
            instance, &unsupported,
            "ranks %u and %u share the GPU %s, which NCCL refuses: use fewer ranks, or "
            "transport cuda_ipc",
            instance->host->rank, rank, own->pci);
    }
    if (!is_here && instance->mode->is_one_sided) {
        return nccl_fail(instance, &unsupported,
                         "rank %u is on another host, and %s puts within one (single node): use "
                         "transport nccl",
                         rank, instance->mode->name);
    }
    return HD_OK;
}

hd_status nccl_meet(struct hd_transport *instance, const struct nccl_card *own,
                    const struct nccl_card *card, uint32_t rank)
{
    const struct nccl_fault broken = {HD_PROTOCOL, rank, NCCL_NONE, 0};
    const struct nccl_fault refused = {card->status, rank, NCCL_NONE, 0};

    if (card->magic != NCCL_MAGIC) {
        return nccl_fail(instance, &broken, "rank %u runs another version of %s", rank,
                         instance->mode->name);
    }
    if (card->status != HD_OK) {
        return nccl_fail(instance, &refused, "rank %u could not open %s (its own error says why)",
                         rank, instance->mode->name);
    }
    if (card->digest != own->digest) {
        return nccl_fail(instance, &broken,
                         "rank %u has other channels than this rank: the ranks do not run one plan",
                         rank);
    }
    return rank == instance->host->rank ? HD_OK : check_neighbour(instance, own, card, rank);
}
