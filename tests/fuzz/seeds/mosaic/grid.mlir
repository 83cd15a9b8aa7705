"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %s: memref<4xi32, #tpu.memory_space<smem>>, %x: memref<8x128xf32, #tpu.memory_space<vmem>>, %o: memref<8x128xf32, #tpu.memory_space<vmem>>, %t: memref<8x256xf32, #tpu.memory_space<vmem>>):
    %c0 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %c1 = "stable_mosaic.arith.constant"() {value = 1 : index} : () -> index
    %n0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %b = "stable_mosaic.arith.constant"() {value = true} : () -> i1
    %v = "stable_mosaic.vector.load"(%x, %c0, %c0) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<8x128xf32>
    %h = "stable_mosaic.arith.truncf"(%v) : (vector<8x128xf32>) -> vector<8x128xbf16>
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x256xf32, #tpu.memory_space<vmem>>) -> (), iteration_bounds = array<i64: 4>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64, sym_name = "main", window_params = [{transform_indices = @map, window_bounds = array<i64: 8, 128>}, {transform_indices = @map, window_bounds = array<i64: 8, 128>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %s: memref<4xi32, #tpu.memory_space<smem>>):
    %z = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%i, %z) : (i32, i32) -> ()
  }) {function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "map"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
