# The driver of the browser is this test's alone.
target_sources(test_web PRIVATE web/browser.c)
