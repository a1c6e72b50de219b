/*
 * tests/fuzz/fuzz_ini.c - any bytes as an ini file: refused with a reason, or a configuration that
 * `heddle config` writes down and reads back to itself.
 */
#include "config/config.h"
#include "output/config_write.h"
#include "memory_file.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Values alone: what a plugin's section holds is the plugin's, and it is not here. */
static void read_back(const struct hd_config *config)
{
    struct hd_config again;
    struct hd_problem problem = {0};
    FILE *const stream = memory_file_write(1);

    assert(hd_config_write(config, stream, 1, 0, NULL) == HD_OK);
    fclose(stream);
    if (hd_config_load(&again, memory_file_path(1), 0, NULL, &problem) != HD_OK) {
        fprintf(stderr, "does not read back: %s: %s: %s\n", problem.place, problem.key,
                problem.message);
        assert(0);
    }
    assert(memcmp(&config->model.width, &again.model.width, sizeof config->model.width) == 0);
    assert(config->pipeline.ranks == again.pipeline.ranks);
    assert(config->train.learning_rate == again.train.learning_rate);
    assert(strcmp(config->data.corpus, again.data.corpus) == 0);
    hd_config_finish(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct hd_config config;
    struct hd_problem problem = {0};

    if (hd_config_load(&config, memory_file(0, bytes, count), 0, NULL, &problem) != HD_OK) {
        assert(problem.exit_code == HD_EXIT_USAGE && problem.message[0] != '\0');
        return 0;
    }
    read_back(&config);
    hd_config_finish(&config);
    return 0;
}
