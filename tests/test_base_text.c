/* tests/test_base_text.c - text to values and back, JSON, tables and option tables. */
#include "base/json.h"
#include "base/option.h"
#include "report/table.h"
#include "base/text.h"
#include "support/check.h"

#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int same_bits(double left, double right)
{
    return memcmp(&left, &right, sizeof left) == 0;
}

static void check_number_texts(void)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {{60, "60"},         {0.003, "0.003"},
                {1e-8, "1e-8"},     {-0.0, "-0"},
                {5e-324, "5e-324"}, {0.1, "0.1"},
                {1e15, "1e15"},     {123456789, "123456789"},
                {1e22, "1e22"},     {-2.5, "-2.5"},
                {0, "0"},           {1.0 / 3, "0.3333333333333333"},
                {100, "100"},       {-1e-300, "-1e-300"},
                {0.0001, "0.0001"}};
    char text[HD_NUMBER_TEXT_BYTES];

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        hd_text_from_number(rows[i].value, text);
        CU_ASSERT_STRING_EQUAL(text, rows[i].text);
    }
}

static void check_round_trip(void)
{
    uint64_t state = 7;
    char text[HD_NUMBER_TEXT_BYTES];

    for (int i = 0; i < 50000; i++) {
        double value;
        double back = 0;
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const uint64_t bits = state ^ state >> 29;
        memcpy(&value, &bits, sizeof value);
        if (i % 4 == 0) { /* near the border between both notations, and whole numbers */
            value = floor(ldexp((double)(bits >> 12), (int)(bits % 20) - 8));
        }
        if (isfinite(value)) {
            hd_text_from_number(value, text);
            if (!hd_text_to_number(text, &back) || !same_bits(value, back)) {
                CU_FAIL("a number does not read back to the same bits");
            }
        }
    }
    hd_text_from_number(DBL_MAX, text);
    CU_ASSERT(strlen(text) < sizeof text);
}

static void check_readers(void)
{
    static const char *const no_numbers[] = {"",      "8x",  " 8", "0x8", "inf", "nan",
                                             "1e999", "1,5", "-",  ".",   "1e",  "--1"};
    static const char *const no_bytes[] = {"", "K", "1T", "64KB", "-1K", "1.5K", "20000000000G"};
    double number = 3;
    uint64_t bytes = 3;
    uint32_t flag = 3;

    for (unsigned i = 0; i < HD_CHECK_COUNT(no_numbers); i++) {
        CU_ASSERT_FALSE(hd_text_to_number(no_numbers[i], &number));
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(no_bytes); i++) {
        CU_ASSERT_FALSE(hd_text_to_bytes(no_bytes[i], &bytes));
    }
    CU_ASSERT_FALSE(hd_text_to_flag("ON", &flag));
    CU_ASSERT(number == 3 && bytes == 3 && flag == 3);
    CU_ASSERT(hd_text_to_bytes("3M", &bytes) && bytes == 3u << 20);
    CU_ASSERT(hd_text_to_flag("yes", &flag) && flag == 1);
}

static void check_utf8(void)
{
    static const struct {
        const char *text;
        uint64_t good;
    } rows[] = {{"abc", 3},        {"a\xc3\xa9", 3},        {"\xe2\x82\xac", 3},
                {"\xc0\x80", 0},   {"a\xed\xa0\x80", 1},    {"\xf4\x90\x80\x80", 0},
                {"ab\xe2\x82", 2}, {"\xf0\x9f\x98\x80", 4}, {"\x80", 0}};
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        CU_ASSERT_EQUAL(hd_text_utf8_bytes(rows[i].text, strlen(rows[i].text)), rows[i].good);
    }
}

static void check_distance(void)
{
    CU_ASSERT_EQUAL(hd_text_distance("", "abc"), 3);
    CU_ASSERT_EQUAL(hd_text_distance("kitten", "sitting"), 3);
    CU_ASSERT_EQUAL(hd_text_distance("rnaks", "ranks"), 1);
    CU_ASSERT_EQUAL(hd_text_distance("width", "width"), 0);
}

/* The whole text that is printed; the caller frees it. */
static char *printed(const struct cJSON *root)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_EQUAL(hd_json_print(root, stream), HD_OK);
    fclose(stream);
    return text;
}

static void check_json(void)
{
    const struct hd_problem problem = {
        .exit_code = 4, .law = 6, .place = "plan", .message = "a \"b\"\n\\ \x01", .cycle = "c"};
    struct cJSON *root = hd_json_begin("plan");
    struct cJSON *list = hd_json_array(root, "list");

    hd_json_u64(list, NULL, UINT64_MAX);
    hd_json_number(list, NULL, 0.1);
    hd_json_number(list, NULL, -0.0);
    hd_json_number(list, NULL, NAN);
    hd_json_i64(list, NULL, INT64_MIN);
    hd_json_flag(list, NULL, 1);
    hd_json_text(root, "bad", "x\xffy");
    hd_json_text(root, "none", NULL);
    hd_json_problem(root, &problem);
    char *text = printed(root);
    CU_ASSERT_STRING_EQUAL(
        text, "{\"heddle\": \"0.1.0\", \"command\": \"plan\", \"list\": [18446744073709551615, "
              "0.1, -0, null, -9223372036854775808, true], \"bad\": \"x\xef\xbf\xbdy\", "
              "\"none\": null, \"error\": {\"code\": 4, \"place\": \"plan\", \"key\": null, "
              "\"message\": \"a \\\"b\\\"\\n\\\\ \\u0001\", \"remedy\": null, \"law\": 6, "
              "\"cycle\": \"c\"}}\n");
    cJSON *back = cJSON_Parse(text);
    CU_ASSERT_PTR_NOT_NULL(back);
    CU_ASSERT_STRING_EQUAL(
        cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(back, "error"), "message")),
        problem.message);
    cJSON_Delete(back);
    free(text);
    hd_json_free(root);
}

static void check_table(void)
{
    static const char *const titles[] = {"NAME", "TICKS", "NOTE"};
    struct hd_table *table = hd_table_create(3, titles);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    hd_table_cell(table, "gpipe");
    hd_table_cell(table, "%u", 57u);
    hd_table_cell(table, "a\nb");
    hd_table_cell(table, "%s", "\xc3\xbc");
    hd_table_cell(table, "-");
    hd_table_cell(table, "c");
    hd_table_print(table, 1, stream);
    fclose(stream);
    CU_ASSERT_STRING_EQUAL(text, " NAME   TICKS  NOTE\n"
                                 " gpipe     57  a b\n"
                                 " \xc3\xbc          -  c\n");
    free(text);
    hd_table_destroy(table);
}

static void check_option_tables(void)
{
    static const struct {
        const char *name;
        struct hd_option option;
        int is_sound;
    } rows[] = {
        {"a sound number", {"a", "4", "1..64", "h", HD_OPTION_INTEGER, 0}, 1},
        {"an open end", {"a", "99", "1..", "h", HD_OPTION_INTEGER, 0}, 1},
        {"bytes in a range of bytes", {"a", "64K", "4K..1G", "h", HD_OPTION_BYTES, 0}, 1},
        {"a word", {"a", "x", "x | y", "h", HD_OPTION_TEXT, 0}, 1},
        {"a default out of range", {"a", "65", "1..64", "h", HD_OPTION_INTEGER, 0}, 0},
        {"a default of another type", {"a", "x", NULL, "h", HD_OPTION_NUMBER, 0}, 0},
        {"no default", {"a", NULL, NULL, "h", HD_OPTION_TEXT, 0}, 0},
        {"an empty default", {"a", "", NULL, "h", HD_OPTION_TEXT, 0}, 0},
        {"a default that is a comment", {"a", "x ; y", NULL, "h", HD_OPTION_TEXT, 0}, 0},
        {"no help", {"a", "x", NULL, NULL, HD_OPTION_TEXT, 0}, 0},
        {"help of two lines", {"a", "x", NULL, "h\ni", HD_OPTION_TEXT, 0}, 0},
        {"a capital in the name", {"A", "x", NULL, "h", HD_OPTION_TEXT, 0}, 0},
        {"an unknown type", {"a", "x", NULL, "h", 9, 0}, 0},
        {"a range that runs backwards", {"a", "4", "64..1", "h", HD_OPTION_INTEGER, 0}, 0},
        {"a range that is no range", {"a", "4", "1..many", "h", HD_OPTION_INTEGER, 0}, 0},
    };
    char reason[HD_REASON_BYTES];

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        if (hd_option_table_is_sound(&rows[i].option, 1, reason) != rows[i].is_sound) {
            printf("\n%s\n", rows[i].name);
            CU_FAIL("an option table is judged wrongly");
        }
    }
    const struct hd_option twice[] = {rows[0].option, rows[0].option};
    CU_ASSERT_FALSE(hd_option_table_is_sound(twice, 2, reason));
    CU_ASSERT_FALSE(hd_option_table_is_sound(NULL, 1, reason));
    CU_ASSERT_TRUE(hd_option_table_is_sound(NULL, 0, reason));
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"numbers are written short", check_number_texts},
        {"every double reads back to the same bits", check_round_trip},
        {"what is not wholly a value is none", check_readers},
        {"UTF-8 is well-formed or not", check_utf8},
        {"the distance counts edits and swaps", check_distance},
        {"one object, exact and valid", check_json},
        {"tables align numbers to the right", check_table},
        {"option tables are judged row by row", check_option_tables},
    };
    return hd_check_main("base_text", checks, HD_CHECK_COUNT(checks));
}
