# The page's own files go into the binary as they stand: core/report/page_assets.c has the assembler
# read them, so it is built again when one of them changes.
file(GLOB page_assets CONFIGURE_DEPENDS core/report/assets/*)
set_source_files_properties(core/report/page_assets.c PROPERTIES
  COMPILE_DEFINITIONS HD_ASSET_DIR="${PROJECT_SOURCE_DIR}/core/report/assets"
  OBJECT_DEPENDS "${page_assets}")
