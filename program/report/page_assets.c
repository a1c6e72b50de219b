/* The assembler includes the files unchanged.  CMake defines HD_ASSET_DIR, and builds this file
   again when one of them changes. */
#include "report/page_assets.h"

#define TEXT_OF(name, files)                              \
    __asm__(".pushsection .rodata\n"                      \
            ".global hd_page_asset_" name "\n"            \
            ".hidden hd_page_asset_" name "\n"            \
            "hd_page_asset_" name ":\n" files ".byte 0\n" \
            ".popsection\n")
#define FILE_OF(file) ".incbin \"" HD_ASSET_DIR "/" file "\"\n"

TEXT_OF("html", FILE_OF("page.html"));
TEXT_OF("css", FILE_OF("page.css"));
TEXT_OF("js", FILE_OF("model.js") FILE_OF("dom.js") FILE_OF("canvas.js") FILE_OF("schedule.js")
                  FILE_OF("schedule_parts.js") FILE_OF("window.js") FILE_OF("measured.js")
                      FILE_OF("numbers.js") FILE_OF("page.js"));
