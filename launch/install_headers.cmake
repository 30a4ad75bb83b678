# Installs the public headers and what they include. launch/examples/README.md describes them. Runs at install
# time with SOURCE, the root of the sources, and FOLDER, where headers go: absolute, or below the prefix.
cmake_minimum_required(VERSION 3.25)
set(pending
  comm/agreement.h comm/gradients/buckets.h comm/communicator.h comm/gradients/gradient_exchange.h comm/world.h
  core/device.h core/error.h core/log.h core/random.h core/stream.h
  data/batch_loader.h data/dataset.h data/sets/subset.h data/formats/synthetic.h
  models/graph.h models/network.h models/network_state.h models/networks/networks.h models/optimizer.h
  models/schedule.h
  launch/train/checkpoint/keeper.h launch/train/checkpoint/saved_training.h launch/train/digest.h
  launch/train/evaluation/metrics.h launch/train/job_end.h launch/train/trainer.h
  launch/train/training_observer.h launch/train/training_records.h launch/train/watch/step_watch.h
  # Lockstep::program: own parts beside those of the lockstep program.
  launch/program/commands/commands.h launch/program/registry.h launch/program/run.h)
set(seen ${pending})
cmake_path(ABSOLUTE_PATH FOLDER BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
while(pending)
  list(POP_FRONT pending header)
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL "${SOURCE}/${header}" DESTINATION "${FOLDER}/${folder}")
  file(STRINGS "${SOURCE}/${header}" includes REGEX "^#include \"")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
    if(NOT included IN_LIST seen)
      list(APPEND seen ${included})
      list(APPEND pending ${included})
    endif()
  endforeach()
endwhile()
