# Sets page_source to the C++ file that holds the page, bundled from the files in this folder with the npm package
# uplot. Without npm, or without access to its registry, the program is built without the page.
set(web ${CMAKE_CURRENT_LIST_DIR})
find_program(TESSERA_NODE NAMES node nodejs)
find_program(TESSERA_NPM npm)
if(TESSERA_NPM AND NOT EXISTS ${web}/node_modules/uplot/dist)
  execute_process(COMMAND ${TESSERA_NPM} ci --no-audit --no-fund --ignore-scripts --fetch-retries=1 --loglevel=error
    WORKING_DIRECTORY ${web} TIMEOUT 120 OUTPUT_QUIET ERROR_QUIET)
endif()
if(TESSERA_NODE AND EXISTS ${web}/node_modules/uplot/dist)
  set(page_source ${CMAKE_CURRENT_BINARY_DIR}/page.cc)
  file(GLOB page_files CONFIGURE_DEPENDS ${web}/*.js ${web}/*.css ${web}/*.html)
  add_custom_command(OUTPUT ${page_source}
    COMMAND ${TESSERA_NODE} ${web}/bundle.mjs ${page_source}
    DEPENDS ${web}/bundle.mjs ${web}/package-lock.json ${page_files} VERBATIM)
else()
  message(WARNING "nodejs, npm or the npm package uplot cannot be had: the program is built without its page, "
    "so --report_to dashboard and tessera report will refuse to run")
  set(page_source ${web}/no_page.cc)
endif()
