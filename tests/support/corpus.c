#include "support/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char directory[] = "/tmp/heddle-corpus-XXXXXX";

const char *hd_corpus_check_directory(void)
{
    return directory;
}

const char *hd_corpus_check_put(const char *name, const void *bytes, size_t byte_count)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *const file = fopen(path, "wb");
    CU_ASSERT_FATAL(file != NULL);
    CU_ASSERT_FATAL(fwrite(bytes, 1, byte_count, file) == byte_count);
    CU_ASSERT_FATAL(fclose(file) == 0);
    return path;
}

struct hd_corpus_request hd_corpus_check_request(const char *path)
{
    return (struct hd_corpus_request){
        .path = path, .vocabulary = 256, .sequence = 4, .samples_per_step = 1};
}

struct hd_corpus *hd_corpus_check_open(const struct hd_corpus_request *request)
{
    struct hd_corpus *corpus = NULL;
    struct hd_problem problem = {0};

    CU_ASSERT_FATAL(hd_corpus_open(request, &corpus, &problem) == HD_OK);
    CU_ASSERT(problem.exit_code == 0);
    return corpus;
}

void hd_corpus_check_refused(const struct hd_corpus_request *request, const char *part)
{
    struct hd_corpus *corpus = NULL;
    struct hd_problem problem = {0};
    char line[8192];

    CU_ASSERT(hd_corpus_open(request, &corpus, &problem) < 0);
    CU_ASSERT_PTR_NULL(corpus);
    CU_ASSERT(problem.exit_code == HD_EXIT_USAGE);
    CU_ASSERT_STRING_EQUAL(problem.place, request->path);
    CU_ASSERT(problem.remedy[0] != '\0');
    hd_problem_line(&problem, line, sizeof line);
    if (strstr(line, part) == NULL) {
        printf("\n    got: %s\n    not: %s\n", line, part);
    }
    CU_ASSERT(strstr(line, part) != NULL);
}

int hd_corpus_check_main(const char *suite, const struct hd_check *checks, unsigned count)
{
    char command[64];

    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    const int failed = hd_check_main(suite, checks, count);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command) != 0 || failed;
}
