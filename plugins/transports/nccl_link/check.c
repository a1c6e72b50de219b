/* nccl_link/check.c - what this machine and these ranks must have; errors name the condition. */
#include "nccl_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA's default number of hardware queues; streams besides those of the channels. */
enum { CONNECTIONS = 8, OTHER_STREAMS = 2 };

#define BYTES_MAX (UINT64_C(1) << 46) /* half of what a process can address */

static hd_status nccl_link_refuse(struct hd_transport *instance, hd_status status,
                                  const char *reason)
{
    return book_fail(&instance->book, book_own_fault(status), "%s: %s", instance->book.name,
                     reason);
}

static hd_status nccl_link_check_sizes(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.channel_count; i++) {
        const struct hd_channel *shape = instance->book.shapes[i];
        if (shape->bytes > BYTES_MAX || shape->depth > BYTES_MAX / shape->bytes) {
            return book_fail(
                &instance->book, book_channel_fault(HD_NO_MEMORY, i),
                "%s: the slots of a channel exceed the memory of any device: plan fewer "
                "slots or smaller microbatches",
                instance->book.name);
        }
    }
    return HD_OK;
}

static hd_status nccl_link_check_setup(struct hd_transport *instance,
                                       const struct hd_transport_setup *setup)
{
    if (setup->memory != HD_MEMORY_CUDA) {
        return nccl_link_refuse(
            instance, HD_UNSUPPORTED,
            "moves device memory only: choose kernels that compute on a GPU, or another "
            "transport (shm, ucx_tag, ucx_put)");
    }
    BOOK_TRY(book_check(&instance->book));
    return nccl_link_check_sizes(instance);
}

static hd_status nccl_link_load(struct hd_transport *instance)
{
    const struct book *book = &instance->book;
    const char *runtime = book_text_option(book, NCCL_OPTION_RUNTIME, "libcudart.so.13");
    const char *library = book_text_option(book, NCCL_OPTION_LIBRARY, "libnccl.so.2");

    hd_status status = cuda_load(&instance->cuda, runtime);
    if (status != HD_OK) {
        return nccl_link_refuse(instance, status, instance->cuda.reason);
    }
    status = nccl_load(&instance->nccl, library);
    return status == HD_OK ? HD_OK : nccl_link_refuse(instance, status, instance->nccl.reason);
}

/* The log of the run shows which libraries were loaded. */
static void nccl_link_say_library(const struct hd_transport *instance)
{
    char version[16], text[2 * NCCL_PATH_BYTES + 128];

    snprintf(text, sizeof text, "%s: NCCL %s (%s), CUDA runtime %d.%d (%s), device %u",
             instance->book.name, nccl_version_text(instance->nccl.version, version),
             instance->nccl.path, instance->cuda.runtime_version / 1000,
             instance->cuda.runtime_version % 1000 / 10, instance->cuda.path, instance->device);
    instance->book.host->log(instance->book.host->context, 2, text);
}

static hd_status nccl_link_choose_device(struct hd_transport *instance,
                                         const struct hd_transport_setup *setup)
{
    char reason[160];

    if (setup->device >= (uint32_t)instance->cuda.device_count) {
        snprintf(reason, sizeof reason,
                 "rank %u would use GPU %u of %d: NCCL needs one GPU for each rank; use "
                 "fewer ranks, or transport cuda_ipc",
                 instance->book.host->rank, setup->device, instance->cuda.device_count);
        return nccl_link_refuse(instance, HD_UNSUPPORTED, reason);
    }
    instance->device = setup->device;
    return nccl_use_device(instance);
}

/* A stream that waits holds its hardware queue and blocks every stream that shares the queue. */
static hd_status nccl_link_check_queues(const struct hd_transport *instance,
                                        char reason[NCCL_REASON_BYTES])
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long queues = text != NULL ? strtol(text, NULL, 10) : CONNECTIONS;
    const uint32_t needed = instance->book.own_count + OTHER_STREAMS;

    if (queues >= (long)needed) {
        return HD_OK;
    }
    snprintf(reason, NCCL_REASON_BYTES,
             "CUDA_DEVICE_MAX_CONNECTIONS: the GPU of rank %u has %ld hardware queues (%s) and %u "
             "are needed: one for each of its %u channels, one to compute and one to copy; set it "
             "to %u or more, 32 at most",
             instance->book.host->rank, queues, text != NULL ? "as set" : "CUDA's default", needed,
             instance->book.own_count, needed);
    return HD_UNSUPPORTED;
}

static hd_status check_mode(struct hd_transport *instance)
{
    char reason[NCCL_REASON_BYTES];
    hd_status status = nccl_link_check_queues(instance, reason);

    if (status == HD_OK && instance->mode->check != NULL) {
        status = instance->mode->check(instance, reason);
    }
    return status == HD_OK ? HD_OK : nccl_link_refuse(instance, status, reason);
}

hd_status nccl_check(struct hd_transport *instance, const struct hd_transport_setup *setup,
                     struct nccl_card *card)
{
    BOOK_TRY(nccl_link_check_setup(instance, setup));
    BOOK_TRY(nccl_link_load(instance));
    BOOK_TRY(nccl_link_choose_device(instance, setup));
    nccl_link_say_library(instance);
    BOOK_TRY(check_mode(instance));
    card->nccl_version = instance->nccl.version;
    card->device = (int32_t)instance->device;
    if (instance->cuda.cudaDeviceGetPCIBusId(card->pci, sizeof card->pci, (int)instance->device) !=
        cudaSuccess) {
        snprintf(card->pci, sizeof card->pci, "device %u", instance->device);
    }
    return HD_OK;
}

/* --- the other ranks --------------------------------------------------------------------- */

hd_status nccl_meet(struct hd_transport *instance, const struct nccl_card *cards, uint32_t rank)
{
    const struct nccl_card *own = &cards[instance->book.host->rank];
    const struct nccl_card *card = &cards[rank];
    const struct book_fault unsupported = book_rank_fault(HD_UNSUPPORTED, rank);
    const bool is_here = book_is_on_host(&own->head.place, &card->head.place);
    char version[16], other[16];

    if (card == own) {
        return HD_OK;
    }
    if (card->nccl_version != own->nccl_version) {
        return book_fail(&instance->book, unsupported,
                         "rank %u has NCCL %s and this rank %s: install one version of NCCL "
                         "everywhere",
                         rank, nccl_version_text(card->nccl_version, other),
                         nccl_version_text(own->nccl_version, version));
    }
    if (is_here && strcmp(own->pci, card->pci) == 0 &&
        getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL) {
        return book_fail(
            &instance->book, unsupported,
            "ranks %u and %u share GPU %s, which NCCL does not support: use fewer ranks, or "
            "transport cuda_ipc",
            instance->book.host->rank, rank, own->pci);
    }
    if (!is_here && instance->mode->is_one_sided) {
        return book_fail(&instance->book, unsupported,
                         "rank %u is on another host, and %s works only within one host (single "
                         "node): use transport nccl",
                         rank, instance->book.name);
    }
    return HD_OK;
}
