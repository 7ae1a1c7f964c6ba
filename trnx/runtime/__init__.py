"""The runtime: devices, memory, arrays, the compile cache, executables and `jit`."""
