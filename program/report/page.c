#include "report/page.h"
#include "report/page_assets.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A page's items are between these two marks, one on each line. */
static const char page_head_mark[] = "<script type=\"application/json\" id=\"data\">[";
static const char page_tail_mark[] = "]</script>";
/* The places of the other parts in page.html. */
static const char page_css_place[] = "<!--css-->", page_data_place[] = "<!--data-->",
                  page_js_place[] = "<!--js-->";

/* U+2028 and U+2029 end a line for some readers of scripts. */
static bool page_is_line_separator(const char *text)
{
    return (unsigned char)text[0] == 0xe2 && (unsigned char)text[1] == 0x80 &&
           ((unsigned char)text[2] == 0xa8 || (unsigned char)text[2] == 0xa9);
}

/* Markup can occur only in the strings of JSON, where \u escapes mean the same. */
static void page_put_item(const char *item, FILE *stream)
{
    for (; *item != '\0'; item++) {
        if (*item == '<' || *item == '>' || *item == '&') {
            fprintf(stream, "\\u%04x", (unsigned)*item);
        } else if (page_is_line_separator(item)) {
            fprintf(stream, "\\u20%02x", (unsigned char)item[2] - 0x80u);
            item += 2;
        } else {
            fputc(*item == '\n' ? ' ' : *item, stream);
        }
    }
}

static void page_put_items(uint32_t item_count, char *const *items, FILE *stream)
{
    fprintf(stream, "%s\n", page_head_mark);
    for (uint32_t i = 0; i < item_count; i++) {
        page_put_item(items[i], stream);
        fputs(i + 1 < item_count ? ",\n" : "\n", stream);
    }
    fputs(page_tail_mark, stream);
}

/* Writes page.html up to a place; returns what follows it. */
static const char *page_put_until(const char *html, const char *place, FILE *stream)
{
    const char *found = strstr(html, place);
    assert(found != NULL);
    fwrite(html, 1, (size_t)(found - html), stream);
    return found + strlen(place);
}

void hd_page_write(uint32_t item_count, char *const *items, FILE *stream)
{
    const char *html = page_put_until(hd_page_asset_html, page_css_place, stream);
    fprintf(stream, "<style>\n%s</style>", hd_page_asset_css);
    html = page_put_until(html, page_data_place, stream);
    page_put_items(item_count, items, stream);
    html = page_put_until(html, page_js_place, stream);
    fprintf(stream, "<script>\n(() => {\n\"use strict\";\n%s})();\n</script>", hd_page_asset_js);
    fputs(html, stream);
}

void hd_page_items_add(struct hd_page_items *items, char *item)
{
    char **grown = realloc(items->items, (items->count + 1u) * sizeof *grown);
    assert(grown != NULL && item != NULL);
    items->items = grown;
    items->items[items->count++] = item;
}

void hd_page_items_finish(struct hd_page_items *items)
{
    for (uint32_t i = 0; i < items->count; i++) {
        free(items->items[i]);
    }
    free(items->items);
    *items = (struct hd_page_items){0};
}

static hd_status page_refuse_page(struct hd_problem *problem, const char *path, const char *reason)
{
    hd_problem_place(problem, "%s", path);
    hd_problem_remedy(problem,
                      "give a directory of a run, or a page that heddle plan --html has written");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* One line between the marks: an object without markup, with a comma after all but the last. */
static bool page_take_line(const char *line, size_t length, struct hd_page_items *items)
{
    if (length > 0 && line[length - 1] == ',') {
        length--;
    }
    char *item = strndup(line, length);
    assert(item != NULL);
    cJSON *tree = strpbrk(item, "<>&") == NULL ? cJSON_Parse(item) : NULL;
    const bool is_item = cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(tree, "facts"));
    cJSON_Delete(tree);
    if (is_item) {
        hd_page_items_add(items, item);
    } else {
        free(item);
    }
    return is_item;
}

static hd_status page_take_lines(const char *text, const char *path, struct hd_page_items *items,
                                 struct hd_problem *problem)
{
    const char *line = strstr(text, page_head_mark);
    const char *end = line != NULL ? strstr(line, page_tail_mark) : NULL;

    if (line == NULL || end == NULL) {
        return page_refuse_page(problem, path,
                                line == NULL ? "is not a page of heddle"
                                             : "is a page that was cut short");
    }
    for (line = strchr(line, '\n'); line != NULL && line + 1 < end;) {
        const char *next = strchr(line + 1, '\n');
        if (next == NULL || !page_take_line(line + 1, (size_t)(next - line - 1), items)) {
            return page_refuse_page(problem, path, "has data that heddle did not write");
        }
        line = next;
    }
    return HD_OK;
}

char *hd_page_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t bytes = 0;

    if (file == NULL) {
        return NULL;
    }
    errno = 0;
    if (getdelim(&text, &bytes, '\0', file) < 0) { /* a page has no zero byte */
        free(text);
        text = errno == 0 ? strdup("") : NULL;
    }
    fclose(file);
    return text;
}

hd_status hd_page_read(const char *path, struct hd_page_items *items, struct hd_problem *problem)
{
    char *text = hd_page_file(path);

    if (text == NULL) {
        return page_refuse_page(problem, path, strerror(errno));
    }
    const hd_status status = page_take_lines(text, path, items, problem);
    free(text);
    return status;
}
