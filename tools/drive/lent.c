#include "drive/lent.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"

#include <assert.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

static bool lent_is_useful(const struct hd_lent *lent)
{
    return lent->about.stream != NULL && lent->ops->copy != NULL && lent->ops->mark != NULL &&
           lent->ops->reached != NULL;
}

hd_status hd_lent_open(struct hd_lent *lent, const struct hd_lent_request *request,
                       const char **reason)
{
    assert(request->kernel->kind == HD_KIND_KERNEL);
    *reason = NULL;
    *lent = (struct hd_lent){.ops = request->kernel->ops,
                             .about = {.size = sizeof lent->about},
                             .host = *request->host,
                             .limit_ms = request->limit_ms};
    lent->host.rank = request->ordinal;
    lent->host.option_count = request->kernel->option_count;
    lent->host.options = request->options;
    lent->staging_bytes = hd_round_up(hd_max_u64(request->staging_bytes, 1), PAGE_BYTES);
    lent->staging = hd_memory_take(lent->staging_bytes, PAGE_BYTES, "staging");
    if (lent->staging == NULL) {
        *reason = "cannot allocate memory for a copy of a slot";
        return HD_NO_MEMORY;
    }
    hd_status status = lent->ops->open(&lent->host, request->ordinal, &lent->about, &lent->kernel);
    if (status == HD_OK && !lent_is_useful(lent)) {
        lent->ops->close(lent->kernel);
        *reason = "the kernel that must lend a device has no stream";
        status = HD_UNSUPPORTED;
    }
    if (status != HD_OK) {
        hd_memory_give(lent->staging);
        lent->staging = NULL;
        lent->kernel = NULL;
    }
    return status;
}

void hd_lent_close(struct hd_lent *lent)
{
    if (lent->kernel == NULL) {
        return;
    }
    lent->ops->close(lent->kernel);
    hd_memory_give(lent->staging);
    lent->kernel = NULL;
    lent->staging = NULL;
}

hd_status hd_lent_rest(const struct hd_lent *lent)
{
    uint64_t mark, passed_ns;

    if (lent == NULL) {
        return HD_OK;
    }
    HD_TRY(lent->ops->mark(lent->kernel, &mark));
    return hd_lent_reach(lent, mark, &passed_ns);
}

hd_status hd_lent_reach(const struct hd_lent *lent, uint64_t mark, uint64_t *passed_ns)
{
    const hd_status status =
        lent->ops->reached(lent->kernel, mark, lent->limit_ms * HD_MS_NS, passed_ns);
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

hd_status hd_lent_copy(const struct hd_lent *lent, void *target, const void *source, uint64_t count)
{
    if (lent == NULL) {
        memcpy(target, source, count);
    }
    return lent == NULL || count == 0 ? HD_OK
                                      : lent->ops->copy(lent->kernel, target, source, count, 0);
}

hd_status hd_lent_copy_now(const struct hd_lent *lent, void *target, const void *source,
                           uint64_t count)
{
    HD_TRY(hd_lent_copy(lent, target, source, count));
    return hd_lent_rest(lent);
}

hd_status hd_lent_fill(const struct hd_lent *lent, void *slot, uint8_t value, uint64_t count)
{
    if (lent == NULL) {
        memset(slot, value, count);
        return HD_OK;
    }
    return lent->ops->copy(lent->kernel, slot, NULL, count, value);
}
