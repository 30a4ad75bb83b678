# Runs JOB, a command line, and fails unless it ends with EXIT_CODE within a minute.
separate_arguments(JOB UNIX_COMMAND "${JOB}")
execute_process(COMMAND ${JOB} RESULT_VARIABLE result TIMEOUT 60)
if(NOT result STREQUAL EXIT_CODE)
  message(FATAL_ERROR "the job ended with '${result}', not ${EXIT_CODE}")
endif()
