# kvprobe_sites(TARGET LAYER...): put the sites of these layers into TARGET. Each binary has its own copy of
# the probe unit; without a red zone, without LTO, -O2 and unsanitized whatever the rest of the build is.
function(kvprobe_sites target)
  if(NOT KVPROBE_PROBES AND NOT "${ARGN}" STREQUAL "SELF") # the tool's own site is not a worker's
    set(layers "")
  else()
    set(layers ${ARGN})
  endif()
  set(unit ${target}_sites)
  add_library(${unit} OBJECT ${CMAKE_SOURCE_DIR}/probes/perf_unit.c)
  foreach(layer ${layers})
    target_compile_definitions(${unit} PRIVATE KVP_UNIT_${layer})
  endforeach()
  # One section for all sites: a linker that collects sections would drop the sites of keys that a static user does
  # not reach, and leave their notes behind.
  target_compile_options(${unit} PRIVATE -O2 -fno-lto -fno-stack-protector -fno-sanitize=all -fno-function-sections
                         -fno-data-sections)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(${unit} PRIVATE -mno-red-zone -fcf-protection=none)
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${unit}>)
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/probes/perf_unit.c APPEND PROPERTY OBJECT_DEPENDS
               ${CMAKE_SOURCE_DIR}/perf_points.def)
endfunction()
