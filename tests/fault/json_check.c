/* tests/fault/json_check.c - json_check FILE: 0 if the file is exactly one JSON object. */
#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argument_count, char **arguments)
{
    FILE *file = argument_count == 2 ? fopen(arguments[1], "rb") : NULL;
    char *text = calloc(1, 1u << 24);

    if (file == NULL || text == NULL) {
        fprintf(stderr, "json_check FILE\n");
        return 2;
    }
    const size_t bytes = fread(text, 1, (1u << 24) - 1, file);
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithOpts(text, &end, 0);
    const int is_one = root != NULL && cJSON_IsObject(root) && end != NULL &&
                       end + strspn(end, " \n") == text + bytes;

    cJSON_Delete(root);
    fclose(file);
    free(text);
    return !is_one;
}
