/*
 * report/page_assets.h - the files of assets/, which the build puts into the binary.
 *
 * Each ends in a zero byte.  [any-thread]
 */
#ifndef HEDDLE_REPORT_PAGE_ASSETS_H
#define HEDDLE_REPORT_PAGE_ASSETS_H

extern const char hd_page_asset_html[], hd_page_asset_css[], hd_page_asset_js[];

#endif /* HEDDLE_REPORT_PAGE_ASSETS_H */
