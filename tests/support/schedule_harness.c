#include "support/schedule_harness.h"

#include "base/memory.h"
#include "support/check.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_MAX = 16, TEXT_BYTES = 256, SPARE_ACTIONS = 16 };

const struct hd_plugin *hd_schedule_load(const char *name)
{
    char file[TEXT_BYTES];

    snprintf(file, sizeof file, "heddle_schedule_%s.so", name);
    void *const library = dlopen(hd_check_plugin(file), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        fprintf(stderr, "schedule %s: %s\n", name, dlerror());
        exit(1);
    }
    const struct hd_plugin *const plugin = dlsym(library, "hd_plugin");
    if (plugin == NULL || plugin->kind != HD_KIND_SCHEDULE) {
        fprintf(stderr, "schedule %s: no hd_plugin of that kind\n", name);
        exit(1);
    }
    return plugin;
}

static void set_option(const struct hd_option *option, const char *text,
                       struct hd_option_value *value)
{
    value->text = text;
    if (option->type == HD_OPTION_FLAG) {
        value->integer = strcmp(text, "on") == 0 || strcmp(text, "1") == 0;
        return;
    }
    if (option->type != HD_OPTION_TEXT) {
        value->number = strtod(text, NULL);
        value->integer = (int64_t)value->number;
    }
}

static void set_options(const struct hd_plugin *plugin, char *text, struct hd_option_value *values)
{
    char *rest = NULL;

    assert(plugin->option_count <= OPTION_MAX);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        set_option(&plugin->options[i], plugin->options[i].initial, &values[i]);
    }
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *const equals = strchr(word, '=');
        assert(equals != NULL);
        *equals = '\0';
        uint32_t i = 0;
        while (i < plugin->option_count && strcmp(plugin->options[i].name, word) != 0) {
            i++;
        }
        assert(i < plugin->option_count);
        set_option(&plugin->options[i], equals + 1, &values[i]);
    }
}

hd_status hd_schedule_plan(const struct hd_schedule_case *wanted, struct hd_pipeline **pipeline,
                           struct hd_problem *problem)
{
    const struct hd_plugin *const plugin = hd_schedule_load(wanted->schedule);
    struct hd_option_value values[OPTION_MAX] = {{0}};
    char options[TEXT_BYTES] = "";
    const struct hd_shape shape = {
        .size = sizeof shape,
        .rank_count = wanted->rank_count,
        .stage_count = wanted->rank_count * wanted->stages_per_rank,
        .microbatch_count = wanted->microbatch_count,
        .flags = wanted->flags,
        .option_count = plugin->option_count,
        .options = values,
    };

    snprintf(options, sizeof options, "%s", wanted->options != NULL ? wanted->options : "");
    set_options(plugin, options, values);
    return hd_pipeline_from_schedule(plugin->name, plugin->ops, &shape, pipeline, problem);
}

struct hd_pipeline *hd_schedule_must_plan(const struct hd_schedule_case *wanted)
{
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};
    char line[4096];

    if (hd_schedule_plan(wanted, &pipeline, &problem) != HD_OK) {
        hd_problem_line(&problem, line, sizeof line);
        fprintf(stderr, "%s P=%u V=%u m=%u: %s\n", wanted->schedule, wanted->rank_count,
                wanted->stages_per_rank, wanted->microbatch_count, line);
        exit(1);
    }
    return pipeline;
}

static void *take(uint64_t count, uint64_t element_bytes)
{
    void *const memory = hd_memory_take(count * element_bytes, 64, "test");
    assert(memory != NULL);
    return memory;
}

static void take_source(struct hd_pipeline_source *source, uint64_t action_count)
{
    source->stage_rank = take((uint64_t)source->replica_count * source->stage_count, 4);
    source->replica_of = take(source->microbatch_count, 1);
    source->rank_begin = take(source->rank_count + 1, 8);
    source->actions = take(action_count + SPARE_ACTIONS, sizeof *source->actions);
}

void hd_schedule_copy(const struct hd_pipeline *pipeline, struct hd_pipeline_source *source)
{
    *source = (struct hd_pipeline_source){
        .rank_count = pipeline->rank_count,
        .stage_count = pipeline->stage_count,
        .microbatch_count = pipeline->microbatch_count,
        .replica_count = pipeline->replica_count,
        .is_forward_only = pipeline->is_forward_only,
    };
    snprintf(source->name, sizeof source->name, "%s", pipeline->schedule);
    take_source(source, pipeline->action_count);
    memcpy(source->stage_rank, pipeline->stage_rank,
           (uint64_t)pipeline->replica_count * pipeline->stage_count * sizeof(uint32_t));
    memcpy(source->replica_of, pipeline->replica_of, pipeline->microbatch_count);
    memcpy(source->rank_begin, pipeline->rank_begin, (pipeline->rank_count + 1) * sizeof(uint64_t));
    memcpy(source->actions, pipeline->actions, pipeline->action_count * sizeof *pipeline->actions);
}

void hd_schedule_parse(const char *text, uint32_t stage_count, uint32_t microbatch_count,
                       const uint32_t *homes, struct hd_pipeline_source *source)
{
    uint64_t filled = 0;

    *source = (struct hd_pipeline_source){.rank_count = 1,
                                          .stage_count = stage_count,
                                          .microbatch_count = microbatch_count,
                                          .replica_count = 1};
    snprintf(source->name, sizeof source->name, "by hand");
    for (const char *at = text; *at != '\0'; at++) {
        source->rank_count += *at == ';';
    }
    take_source(source, strlen(text));
    memcpy(source->stage_rank, homes, stage_count * sizeof *homes);
    uint32_t rank = 0;
    for (const char *at = text; *at != '\0';) {
        struct hd_action action = {0};
        int length = 0;
        char kind = 0;
        if (*at == ';') {
            source->rank_begin[++rank] = filled;
            at++;
        } else if (*at == ' ') {
            at++;
        } else if (*at == '.') {
            source->actions[filled++] = (struct hd_action){.kind = HD_IDLE, .ticks = 1};
            at++;
        } else {
            const int read =
                sscanf(at, "%u%c%u%n", &action.stage, &kind, &action.microbatch, &length);
            assert(read == 3);
            action.kind = (uint8_t)kind;
            source->actions[filled++] = action;
            at += length;
        }
    }
    source->rank_begin[source->rank_count] = filled;
}

void hd_schedule_insert(struct hd_pipeline_source *source, uint32_t rank, uint64_t place,
                        struct hd_action action)
{
    const uint64_t index = source->rank_begin[rank] + place;
    const uint64_t total = source->rank_begin[source->rank_count];

    assert(index <= source->rank_begin[rank + 1]);
    memmove(&source->actions[index + 1], &source->actions[index],
            (total - index) * sizeof *source->actions);
    source->actions[index] = action;
    for (uint32_t later = rank + 1; later <= source->rank_count; later++) {
        source->rank_begin[later]++;
    }
}

void hd_schedule_remove(struct hd_pipeline_source *source, uint32_t rank, uint64_t place)
{
    const uint64_t index = source->rank_begin[rank] + place;
    const uint64_t total = source->rank_begin[source->rank_count];

    assert(index < source->rank_begin[rank + 1]);
    memmove(&source->actions[index], &source->actions[index + 1],
            (total - index - 1) * sizeof *source->actions);
    for (uint32_t later = rank + 1; later <= source->rank_count; later++) {
        source->rank_begin[later]--;
    }
}
