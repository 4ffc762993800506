# `cmake --install`, the Debian package (`cpack -G DEB`) and the wheel, for which scikit-build-core sets SKBUILD; scripts/package.sh
# makes all packages. Installing builds nothing: build the program first.
include(GNUInstallDirs)
if(SKBUILD)
  # The prefix is the Python package; pip puts what is in the data folder into the environment's own `share`.
  set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
endif()
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(TESSERA_PACKAGE_CONTACT "The Tessera authors <authors@tessera.invalid>" CACHE STRING "Maintainer of the Debian package")

if(TESSERA_PROGRAM)
  install(PROGRAMS ${TESSERA_PROGRAM} TYPE BIN)
  set(program ${TESSERA_PROGRAM})
else()
  install(TARGETS tessera RUNTIME)
  set(program $<TARGET_FILE:tessera>)
endif()
# deploy/templates is part of the program and installed with it.
install(DIRECTORY deploy/eks deploy/health DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/deploy USE_SOURCE_PERMISSIONS)
if(SKBUILD)
  # Without these, auditwheel would not see that the libraries find each other, as they do through the program's RPATH.
  find_program(PATCHELF patchelf REQUIRED)
  install(CODE "
    set(libraries \"\${CMAKE_INSTALL_PREFIX}/lib/tessera\")
    execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/cmake/copy_libraries.sh\" --wheel \"${program}\" \"\${libraries}\"
      \"${SKBUILD_METADATA_DIR}/licenses/libraries\" COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB libraries \"\${libraries}/*\")
    execute_process(COMMAND \"${CMAKE_STRIP}\" \"\${CMAKE_INSTALL_PREFIX}/bin/tessera\" COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND \"${PATCHELF}\" --force-rpath --set-rpath \$ORIGIN \${libraries} COMMAND_ERROR_IS_FATAL ANY)
  ")
else()
  install(FILES README.md LICENSE cmake/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tessera)
  install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tessera)
endif()

# Manual pages and completions come from the program that is installed.
find_program(GZIP gzip REQUIRED)
set(generated ${PROJECT_BINARY_DIR}/generated)
install(CODE "
  file(REMOVE_RECURSE \"${generated}\")
  file(MAKE_DIRECTORY \"${generated}/completions\")
  execute_process(COMMAND \"${program}\" help --man \"${generated}/man\" COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"${program}\" completion \${shell}
      OUTPUT_FILE \"${generated}/completions/\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB pages \"${generated}/man/*.1\")
  set(changes \"${generated}/changelog\")
  configure_file(\"${PROJECT_SOURCE_DIR}/CHANGELOG.md\" \"\${changes}\" COPYONLY)
  execute_process(COMMAND \"${GZIP}\" -9n \${pages} \${changes} COMMAND_ERROR_IS_FATAL ANY)
  list(TRANSFORM pages APPEND .gz)
  get_filename_component(share \"${CMAKE_INSTALL_DATADIR}\" ABSOLUTE BASE_DIR \"\${CMAKE_INSTALL_PREFIX}\")
  file(INSTALL \"\${changes}.gz\" DESTINATION \"\${share}/doc/tessera\")
  file(INSTALL \${pages} DESTINATION \"\${share}/man/man1\")
  set(zsh \"\${share}/zsh/site-functions\")
  if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")  # Debian's folder for packages
    set(zsh \"\${share}/zsh/vendor-completions\")
  endif()
  file(INSTALL \"${generated}/completions/bash\" DESTINATION \"\${share}/bash-completion/completions\" RENAME tessera)
  file(INSTALL \"${generated}/completions/zsh\" DESTINATION \"\${zsh}\" RENAME _tessera)
  file(INSTALL \"${generated}/completions/fish\" DESTINATION \"\${share}/fish/vendor_completions.d\"
    RENAME tessera.fish)
")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_CONTACT "${TESSERA_PACKAGE_CONTACT}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "train language models on processors
Tessera trains and fine-tunes Llama-family language models on Intel Xeon
servers, one machine or many, from and to Hugging Face model folders.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
# Loaded only where --fabric asks for it.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libfabric1)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
include(CPack)
