# cmake -DBUILD=... -DCONSUMER=... -P test_package.cmake
set(prefix ${BUILD}/package-test/prefix)
set(consumer ${BUILD}/package-test/consumer)
file(REMOVE_RECURSE ${prefix} ${consumer}/CMakeCache.txt)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${consumer} -G Ninja
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build ${consumer})
run(${prefix}/bin/gradwire --version)
run(${prefix}/bin/gradwire run --nproc 2 -- ${consumer}/consumer)
