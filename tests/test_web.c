/*
 * tests/test_web.c - report.html as a person uses it: in a browser, with keys and clicks, in light
 * and dark, wide and narrow.
 *
 * Pages are made by the heddle of this build; each test loads some, acts, and reads the text that
 * is then there.  None may log an error.  Screenshots stay in tests/web/ of the build tree.
 *
 * Sources: issue "See it"; the report, figures 25 and 26 and Table 10.
 */
#include "support/check.h"
#include "support/command.h"
#include "web/browser.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096 };

static struct browser browser;
static const char *work;

static void fail(const char *what, const char *wanted, const char *got)
{
    printf("\n    %s: wanted '%s', got '%s'", what, wanted, got);
    CU_FAIL("a page is not as it should be");
}

static void is_text(const char *expression, const char *wanted)
{
    char *got = browser_text(&browser, expression);

    if (strcmp(got, wanted) != 0) {
        fail(expression, wanted, got);
    }
    free(got);
}

/* The text of the first element that matches, its white space made single: waited for, since tables
   follow the cursor a frame later. */
static void shows(const char *selector, const char *wanted)
{
    char expression[TEXT_BYTES];

    snprintf(
        expression, sizeof expression,
        "(document.querySelector(`%s`) || {innerText: 'nothing'}).innerText.replace(/\\s+/g, ' "
        "').trim().includes(`%s`)",
        selector, wanted);
    if (!browser_await(&browser, expression)) {
        snprintf(expression, sizeof expression,
                 "(document.querySelector(`%s`) || {innerText: 'nothing'}).innerText.slice(0, 700)",
                 selector);
        char *got = browser_text(&browser, expression);
        fail(selector, wanted, got);
        free(got);
    }
}

static void no_errors(const char *name)
{
    if (browser.error_count > 0) {
        fail(name, "no error in the console", browser.first_error);
    }
}

static void make_page(const char *words)
{
    struct command command = {0};
    const int code = command_run(&command, words);

    if (code != 0) {
        char *text = command_text(command.err);
        fail(words, "exit 0", text);
        free(text);
    }
}

static void load(const char *page, const char *fragment)
{
    char url[TEXT_BYTES];

    snprintf(url, sizeof url, "file://%s/%s%s", work, page, fragment);
    CU_ASSERT_TRUE(browser_load(&browser, url));
    CU_ASSERT_TRUE(browser_await(&browser, "window.heddle !== undefined && heddle.view !== "
                                           "undefined"));
    no_errors(page);
}

static void shot(const char *name)
{
    char path[TEXT_BYTES];

    snprintf(path, sizeof path, "%s/%s.png", hd_check_build("tests/web"), name);
    CU_ASSERT_TRUE(browser_shot(&browser, path));
    no_errors(name);
}

static void keys(const char *key, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        browser_key(&browser, key);
    }
}

static void focus_grid(void)
{
    free(browser_text(&browser, "document.querySelector('.scroller').focus()"));
}

#define TABLE10                                                            \
    "pipeline.ranks=4 pipeline.stages_per_rank=2 pipeline.microbatches=8 " \
    "memory.state_gb=12 memory.copy_gb=10 memory.budget_gb=80 --timeline drawn "

/* Classes are the core's: what the page counts by itself must be what the plan says. */
#define COUNTED                                                                           \
    "(() => { const plan = heddle.plan, sums = {local: 0, hidden: 0, exposed: 0};"        \
    "for (let i = 0; i < plan.count; i++) { const way = plan.handoffClass(i); if (way) {" \
    "sums[way]++; } } return JSON.stringify(sums) === JSON.stringify(plan.facts.handoffs); })()"
#define PEAKS                                                                                      \
    "(() => { const plan = heddle.plan; return plan.facts.peak_copies.every((peak, rank) => peak " \
    "=== plan.held.slice(plan.begin[rank], plan.begin[rank + 1]).reduce((a, b) => Math.max(a, "    \
    "b), 0)); })()"
#define POOLS                                                          \
    "heddle.plan.facts.retention.every((most, stage) => most === 1 + " \
    "heddle.plan.leases(stage).reduce((a, lease) => Math.max(a, lease.slot), 0))"

/* Figure 25, at the tick that the report shows. */
static void test_interleaved(void)
{
    make_page("plan pipeline.schedule=interleaved_1f1b " TABLE10 "--html interleaved.html");
    browser_size(&browser, 1440, 900);
    browser_media(&browser, "light", "screen");
    load("interleaved.html", "");
    shows("h1", "interleaved_1f1b, 4 ranks, 8 microbatches");
    shows(".stats", "57 ticks");
    shows(".stats", "36 / 228");
    shows(".stats", "15.8 % 18.8 % over ideal");
    shows(".stats", "11 \u00b7 9 \u00b7 7 \u00b7 5");
    shows(".stats", "0 \u00b7 59 \u00b7 53");
    shows(".stats", "rank 3");
    focus_grid();
    keys("ArrowRight", 16);
    shows("#at-tick", "rank 0 0F6 forward 11 11 rank 1 1F5 forward 9 9 "
                      "rank 2 2F4 forward 7 7 rank 3 7F3 forward 5 5");
    shows("#pool", "Stage 0 needs 8 slots");
    shows("#pool", "After tick 16, 7 are leased");
    shows(".slots", "slot 6 microbatch 6 slot 7 free");
    is_text(COUNTED, "true");
    is_text(PEAKS, "true");
    is_text(POOLS, "true");
    /* Table 10: 12 + 10 x copies GB under a budget of 80. */
    is_text("heddle.view.budgets.map((budget) => budget.toFixed(1)).join()", "6.8,6.8,6.8,6.8");
    shot("schedule-light");
}

/* Figure 26: what runs on the receiver while a transfer is under way. */
static void test_windows(void)
{
    load("interleaved.html", "#tick=16");
    shows("#handoffs", "5B0 \u2192 4B0 1 \u2192 0 hidden 0F6");
    shows("#handoffs", "0F6 \u2192 1F6 0 \u2192 1 hidden 5B1");
    shows("#handoffs", "5B1 \u2192 4B1 1 \u2192 0 hidden 0F7");
    make_page("plan pipeline.schedule=1f1b_v " TABLE10 "--html v.html");
    load("v.html", "#tick=27");
    shows(".stats", "63 ticks");
    shows(".stats", "23.8 %");
    shows(".stats", "6 \u00b7 6 \u00b7 6 \u00b7 6");
    shows(".stats", "16 \u00b7 18 \u00b7 78");
    shows(".stats", "rank 0");
    is_text("document.getElementById('from').value = 27; document.getElementById('to').value = 30; "
            "document.getElementById('to').dispatchEvent(new Event('input')); "
            "document.querySelectorAll('#handoffs tbody tr').length > 0",
            "true");
    shows("#handoffs", "exposed nothing");
    shows("#handoffs", "hidden");
    is_text(COUNTED, "true");
    is_text(PEAKS, "true");
    shot("schedule-v");
}

static void test_follow(void)
{
    load("interleaved.html", "#tick=16&rank=1");
    focus_grid();
    browser_key(&browser, "Enter");
    shows("#followed", "Microbatch 5 through 8 stages");
    is_text("document.querySelectorAll('#followed tbody tr').length", "8");
    shows("#followed", "0 0 0F5 9 0B5 51\u201352 exposed");
    shows("#say", "rank 1: 1F5");
    browser_media(&browser, "dark", "screen");
    shot("follow-dark");
    browser_key(&browser, "Escape");
    shows("#followed", "Choose a number");
    browser_media(&browser, "light", "screen");
    keys("ArrowDown", 5); /* stops at the last rank */
    keys("ArrowRight", 1);
    browser_key(&browser, "Enter");
    shows("#followed", "Microbatch 3 through 8 stages");
}

/* A click in the grid, in the middle of 0F6; the tooltip says what lies there. */
static void test_click(void)
{
    load("interleaved.html", "");
    const double left =
        browser_number(&browser, "document.querySelector('canvas').getBoundingClientRect().left + "
                                 "heddle.view.timeline.xAt(16.5)");
    const double top = browser_number(
        &browser, "document.querySelector('canvas').getBoundingClientRect().top + 18 + "
                  "heddle.view.row / 2");
    browser_click(&browser, left, top);
    shows("#at-tick", "rank 0 0F6 forward 11 11");
    shows("#followed", "Microbatch 6");
    browser_move(&browser, left + 1, top);
    shows("#tip", "0F6 on rank 0");
    no_errors("click");
}

/* Zoom keeps the cursor in sight; the whole fits again. */
static void test_zoom(void)
{
    load("interleaved.html", "#tick=50");
    focus_grid();
    keys("+", 3);
    is_text("heddle.view.timeline.isFit", "false");
    is_text(
        "(() => { const x = heddle.view.timeline.xAt(heddle.shared.tick); return x >= 64 && x < "
        "heddle.view.timeline.width; })()",
        "true");
    browser_key(&browser, "Home");
    is_text("document.querySelector('.scroller').scrollLeft", "0");
    browser_key(&browser, "0");
    is_text("heddle.view.timeline.isFit", "true");
    no_errors("zoom");
}

static void opens(const char *tab)
{
    char expression[256];

    snprintf(expression, sizeof expression, "document.getElementById('tab-%s').click()", tab);
    free(browser_text(&browser, expression));
    snprintf(expression, sizeof expression,
             "document.getElementById('tab-%s').getAttribute('aria-selected')", tab);
    is_text(expression, "true");
}

/* Every figure has its data as a table: opened, it holds the plan's actions. */
static void test_data(void)
{
    load("interleaved.html", "");
    free(browser_text(&browser,
                      "document.querySelectorAll('details').forEach((one) => { one.open = "
                      "true; })"));
    CU_ASSERT_TRUE(browser_await(&browser, "document.querySelectorAll('details table').length === "
                                           "2"));
    is_text("document.querySelectorAll('details table')[0].querySelectorAll('tbody tr').length",
            "128");
    opens("numbers");
    shows("#memory", "rank 0 11 12.0 GB 110 GB 0 B 122 GB over");
    shows("#memory", "rank 3 5 12.0 GB 50.0 GB 0 B 62.0 GB fits");
    shows("#config", "memory.budget_gb 80 command line");
    shot("numbers-light");
}

/* No line of a page is wider than the page, whatever its width. */
static void test_widths(void)
{
    static const unsigned widths[] = {360, 768, 1440, 2560};

    for (unsigned i = 0; i < HD_CHECK_COUNT(widths); i++) {
        browser_size(&browser, widths[i], 900);
        load("interleaved.html", "#tick=16&follow=3");
        is_text("document.documentElement.scrollWidth <= innerWidth", "true");
        CU_ASSERT_TRUE(browser_await(&browser,
                                     "Math.abs(heddle.view.timeline.width - "
                                     "heddle.view.timeline.canvases[0].clientWidth) <= 1"));
        opens("numbers");
        is_text("document.documentElement.scrollWidth <= innerWidth", "true");
    }
    browser_size(&browser, 390, 844);
    load("interleaved.html", "#tick=16");
    shot("schedule-narrow");
    browser_size(&browser, 1440, 900);
    browser_media(&browser, "light", "print");
    free(browser_text(&browser, "dispatchEvent(new Event('beforeprint'))"));
    shot("schedule-print");
    browser_media(&browser, "light", "screen");
}

/* WCAG's contrast of each pair of colours that carries text: at least 4.5. */
static void test_contrast(void)
{
    static const char least[] =
        "(() => { const style = getComputedStyle(document.documentElement);"
        "const light = (name) => { const hex = style.getPropertyValue('--' + name).trim();"
        "const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)"
        ".map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);"
        "return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };"
        "const pairs = [['ink', 'card'], ['muted', 'card'], ['muted', 'paper'], ['accent', 'card'],"
        "['accent', 'accent-soft'], ['ink', 'accent-soft'], ['exposed', 'card'], ['hidden', "
        "'card'],"
        "['local', 'card'], ['muted', 'empty'], ...['f', 'b', 'i', 'w'].flatMap((kind) => [0, "
        "1].map("
        "(half) => [`${kind}${half}`, `${kind}${half}-ink`]))];"
        "const poor = pairs.filter(([one, other]) => { const [low, high] = [light(one), "
        "light(other)].sort((a, b) => a - b); return !((high + 0.05) / (low + 0.05) >= 4.5); });"
        "return JSON.stringify(poor); })()";

    load("interleaved.html", "#theme=light");
    is_text("document.documentElement.dataset.theme", "light");
    is_text(least, "[]");
    browser_key(&browser, "d");
    is_text("document.documentElement.dataset.theme", "dark");
    is_text(least, "[]");
    browser_media(&browser, "dark", "screen");
    load("interleaved.html", "");
    is_text("document.documentElement.dataset.theme", "dark");
    browser_media(&browser, "light", "screen");
}

static void test_large(void)
{
    struct stat known;

    make_page("plan pipeline.schedule=interleaved_1f1b pipeline.ranks=16 pipeline.microbatches=64 "
              "--html middle.html");
    CU_ASSERT_EQUAL_FATAL(stat("middle.html", &known), 0);
    CU_ASSERT_TRUE(known.st_size < 2000000);
    load("middle.html", "");
    shows(".stats", "429 ticks");
    is_text(COUNTED, "true");
    shot("schedule-middle");
    make_page("plan pipeline.schedule=interleaved_1f1b pipeline.ranks=64 pipeline.microbatches=512 "
              "--html large.html");
    load("large.html", "#tick=1000");
    shows(".stats", "3,261 ticks");
    is_text(COUNTED, "true");
    is_text(PEAKS, "true");
    shot("schedule-large");
    focus_grid();
    keys("+", 12);
    free(browser_text(&browser, "document.querySelector('.scroller').scrollLeft = 20000"));
    CU_ASSERT_TRUE(browser_await(&browser, "heddle.view.timeline.timeAt(64) > 200"));
    /* A number of frames in which each scrolls on: drawn each time, and none throws. */
    const double drawn = browser_number(
        &browser,
        "new Promise((done) => { const bar = document.querySelector('.scroller'), before = "
        "heddle.view.timeline.drawCount; let left = 20; const step = () => { "
        "bar.scrollLeft += 300; if (left-- > 0) { requestAnimationFrame(step); } else { "
        "done(heddle.view.timeline.drawCount - before); } }; step(); })");
    CU_ASSERT_TRUE(drawn >= 10);
    shot("schedule-large-near");
}

/* A name is text, whatever it says. */
static void test_markup(void)
{
    static const char name[] = "<svg><b>\"x'&amp;.csv";
    char words[512];

    make_page("plan pipeline.ranks=2 pipeline.microbatches=2 --csv plain.csv");
    CU_ASSERT_EQUAL_FATAL(mkdir("<", 0755), 0);
    CU_ASSERT_EQUAL_FATAL(link("plain.csv", name), 0);
    CU_ASSERT_EQUAL_FATAL(link("plain.csv", "</script><b>.csv"), 0);
    snprintf(words, sizeof words, "plan pipeline.schedule=%s --html markup.html", name);
    make_page(words);
    load("markup.html", "");
    snprintf(words, sizeof words,
             "document.getElementById('title').textContent.startsWith(`%s`) && "
             "document.querySelectorAll('h1 *, .subtitle *').length === 0",
             name);
    is_text(words, "true");
    make_page("plan pipeline.schedule=</script><b>.csv --html script.html");
    load("script.html", "");
    is_text("document.getElementById('title').textContent.startsWith('</script><b>.csv') && "
            "document.querySelectorAll('h1 *').length === 0 && document.scripts.length === 2",
            "true");
}

static void test_compare(void)
{
    make_page("report interleaved.html v.html -o compared.html");
    load("compared.html", "");
    shows("h1", "2 plans and runs");
    is_text("document.querySelectorAll('#compared tbody tr').length", "2");
    shows("#compared", "57 15.8 %");
    shows("#compared", "63 23.8 %");
    shows("#bars", "Copies, most of a rank");
    shot("compare-light");
    free(browser_text(&browser,
                      "(() => { const pick = document.getElementById('item'); pick.value = "
                      "1; pick.dispatchEvent(new Event('change')); })()"));
    shows("h1", "1f1b_v");
    shows(".stats", "63 ticks");
    make_page("plan --sweep pipeline.microbatches=4:8 --html sweep.html");
    load("sweep.html", "");
    shows("#compared", "microbatches=4");
}

/* A run of the synthetic kernel: every pass is as long as [cost] says. */
static void test_measured(void)
{
    make_page("run pipeline.schedule=interleaved_1f1b pipeline.ranks=4 pipeline.microbatches=8 "
              "kernels.name=synthetic cost.tick_us=300 train.steps=4 train.warmup_steps=0 "
              "output.directory=measured --quiet");
    load("measured/report.html", "");
    opens("measured");
    shows(".stats", "Step 4 3 kept");
    is_text("document.querySelectorAll('#shares tbody tr').length", "4");
    /* What the page draws is a possible past: per rank no pass begins before the one before it has
       ended, and none before its input was sent. */
    is_text(
        "(() => { const plan = heddle.plan, times = heddle.view.measured; for (let i = 0; i < "
        "plan.count; i++) { const producer = plan.producer(i); if ((i > "
        "plan.begin[plan.rankOf[i]] && times.start[i] < times.end[i - 1]) || (producer >= 0 && "
        "times.start[i] < times.end[producer])) { return plan.label(i); } } return 'fine'; })()",
        "fine");
    /* The shares of a rank add up to the step: no part of it is below zero. */
    is_text("heddle.plan.facts.peak_copies.every((_, rank) => Object.values("
            "heddle.view.measured.shares(rank)).every((share) => share >= -1e-6))",
            "true");
    shows("#here", "0F0 on rank 0");
    focus_grid();
    browser_key(&browser, "ArrowRight");
    shows("#here", "0F1 on rank 0");
    browser_key(&browser, "ArrowDown");
    shows("#here", "on rank 1");
    shot("measured-light");
    opens("schedule");
    is_text("heddle.shared.rank", "1");
    opens("numbers");
    shows(".stats", "Bubble planned 15.8 %");
    is_text("document.querySelectorAll('svg.chart').length", "2");
    shot("numbers-run");
    make_page("report measured");
    load("measured/report.html", "#view=measured");
    shows(".stats", "Step 4 3 kept");
}

static const struct hd_check checks[] = {
    {"figure 25: tick 16, copies, slots, budget", test_interleaved},
    {"figure 26: what runs while a transfer is under way; 1f1b_v", test_windows},
    {"a microbatch is followed with the keys", test_follow},
    {"a click follows, the pointer tells", test_click},
    {"zoom keeps the cursor in sight", test_zoom},
    {"every figure has its data as a table", test_data},
    {"360 to 2560 pixels, and paper", test_widths},
    {"colours carry text in light and dark", test_contrast},
    {"16 and 64 ranks: opens, scrolls", test_large},
    {"markup in a name is text", test_markup},
    {"two plans side by side, and a sweep", test_compare},
    {"a run in real time", test_measured},
};

int main(void)
{
    if (browser_program() == NULL) {
        return hd_check_skip("no chromium is installed");
    }
    work = command_work("test_web");
    mkdir(hd_check_build("tests/web"), 0755);
    char profile[COMMAND_PATH_BYTES + 16];
    snprintf(profile, sizeof profile, "%s/profile", work);
    if (!browser_open(&browser, profile)) {
        printf("chromium does not start: see %s/browser.log\n", work);
        browser_close(&browser);
        return 1;
    }
    const int code = hd_check_main("report.html in a browser", checks, HD_CHECK_COUNT(checks));
    browser_close(&browser);
    return code;
}
