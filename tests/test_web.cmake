# The browser and its reader are this test's alone.
target_sources(test_web PRIVATE web/browser.c web/reader.c web/runs.c)
