# The binary contains the page's files unchanged: program/report/page_assets.c makes the assembler
# read them, so it is built again when one of them changes.
file(GLOB page_assets CONFIGURE_DEPENDS program/report/assets/*)
set_source_files_properties(program/report/page_assets.c PROPERTIES
  COMPILE_DEFINITIONS HD_ASSET_DIR="${PROJECT_SOURCE_DIR}/program/report/assets"
  OBJECT_DEPENDS "${page_assets}")
