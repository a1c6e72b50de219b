#include "base/host.h"
#include "base/memory.h"
#include "conform/check.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void case_decide(struct hd_conform_case *check, uint32_t verdict, const char *format,
                        va_list arguments)
{
    struct hd_conform_verdict_page *page = check->page;

    if (atomic_exchange(&page->claimed, 1) == 0) {
        page->verdict = verdict;
        vsnprintf(page->text, sizeof page->text, format, arguments);
        atomic_store(&page->written, 1);
    }
}

void hd_conform_fail(struct hd_conform_case *check, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    case_decide(check, HD_CONFORM_FAILED, format, arguments);
    va_end(arguments);
}

void hd_conform_skip(struct hd_conform_case *check, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    case_decide(check, HD_CONFORM_SKIPPED, format, arguments);
    va_end(arguments);
}

void hd_conform_remark(struct hd_conform_case *check, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(check->page->remark, sizeof check->page->remark, format, arguments);
    va_end(arguments);
}

void hd_conform_at(struct hd_conform_case *check, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(check->page->place, sizeof check->page->place, format, arguments);
    va_end(arguments);
}

bool hd_conform_is_decided(const struct hd_conform_case *check)
{
    return atomic_load(&check->page->claimed) != 0;
}

uint64_t hd_conform_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint64_t hd_conform_draw(struct hd_conform_case *check)
{
    return hd_conform_mix(check->random++);
}

/* --- the host that a plugin sees ---------------------------------------------------------- */

static void *case_host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes,
                             const char *tag)
{
    struct hd_conform_case *check = context;

    check->allocation_count++;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void case_host_log(void *context, uint32_t level, const char *text)
{
    (void)context;
    (void)level;
    (void)text;
}

static hd_status case_host_fail(void *context, const struct hd_error *error)
{
    struct hd_conform_report *report = &((struct hd_conform_case *)context)->report;

    report->count++;
    report->status = error->status;
    report->rank = error->rank;
    report->channel = error->channel;
    report->sequence = error->sequence;
    snprintf(report->text, sizeof report->text, "%s", error->text != NULL ? error->text : "");
    return error->status;
}

static void case_host_trace_transfer(void *context, const struct hd_transfer *transfer)
{
    (void)context;
    (void)transfer;
}

static void case_host_account(void *context, int64_t bytes, const char *tag)
{
    (void)context;
    (void)bytes;
    (void)tag;
}

void hd_conform_host_init(struct hd_conform_case *check)
{
    struct hd_host *host = &check->host;

    *host = hd_host_basics();
    host->rank_count = 1;
    host->option_count = check->plugin->option_count;
    host->options = check->subject->options;
    host->context = check;
    host->alloc = case_host_alloc;
    host->log = case_host_log;
    host->fail = case_host_fail;
    host->trace_transfer = case_host_trace_transfer;
    host->account = case_host_account;
}

uint64_t hd_conform_held_bytes(void)
{
    struct hd_memory_use rows[HD_MEMORY_TAG_MAX];
    const uint32_t count = hd_memory_report(rows, HD_MEMORY_TAG_MAX);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count && i < HD_MEMORY_TAG_MAX; i++) {
        bytes += rows[i].bytes;
    }
    return bytes;
}

uint32_t hd_conform_entry_count(const char *folder)
{
    DIR *stream = opendir(folder);
    uint32_t count = 0;

    while (stream != NULL && readdir(stream) != NULL) {
        count++;
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return count;
}
