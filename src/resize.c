// Resizes RGB pictures as Pillow's bilinear filter did up to version 12, to the bit, in a quarter of its time.
//
// Pillow's arithmetic: a pass along the rows, then one along the columns. Each sums pixels times weights, which are
// integers with 22 bits behind the point, adds a half and cuts to 8 bits. The weights are not negative and add up to 1,
// so nothing overflows; oxygen_ros/perception/resize.py makes them, and keeps pictures so small that their rounding
// cannot lead beyond 255.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#endif

enum { CHANNELS = 3, FRACTION_BITS = 22, HALF = 1 << (FRACTION_BITS - 1), BLOCK = 16 };

// What pixels of one direction are made of: target pixel i is the sum over k < count[i] of
// weight[taps * i + k] * source pixel [first[i] + k].
struct weights {
  int32_t size;
  int32_t taps;
  const int32_t *first;
  const int32_t *count;
  const int32_t *weight;
};

typedef void (*two_rows_pass)(const uint8_t *const source[2], uint8_t *const target[2], const struct weights *columns);
typedef void (*row_sum)(uint8_t *const *rows, const int32_t *weight, int count, uint8_t *target, int bytes);

static void two_rows_plain(const uint8_t *const source[2], uint8_t *const target[2], const struct weights *columns)
{
  for (int row = 0; row < 2; ++row) {
    uint8_t *to = target[row];
    for (int x = 0; x < columns->size; ++x, to += CHANNELS) {
      const uint8_t *from = source[row] + CHANNELS * (ptrdiff_t)columns->first[x];
      const int32_t *weight = columns->weight + (ptrdiff_t)columns->taps * x;
      int32_t red = HALF, green = HALF, blue = HALF;
      for (int k = 0; k < columns->count[x]; ++k, from += CHANNELS) {
        red += from[0] * weight[k];
        green += from[1] * weight[k];
        blue += from[2] * weight[k];
      }
      to[0] = (uint8_t)(red >> FRACTION_BITS);
      to[1] = (uint8_t)(green >> FRACTION_BITS);
      to[2] = (uint8_t)(blue >> FRACTION_BITS);
    }
  }
}

static void sum_plain(uint8_t *const *rows, const int32_t *weight, int count, uint8_t *target, int bytes)
{
  for (int x = 0; x < bytes; x += BLOCK) {
    int32_t sums[BLOCK];
    for (int i = 0; i < BLOCK; ++i) {
      sums[i] = HALF;
    }
    for (int k = 0; k < count; ++k) {
      for (int i = 0; i < BLOCK; ++i) {
        sums[i] += rows[k][x + i] * weight[k];
      }
    }
    for (int i = 0; i < BLOCK && x + i < bytes; ++i) {
      target[x + i] = (uint8_t)(sums[i] >> FRACTION_BITS);
    }
  }
}

#ifdef AVX2

// Four bytes, so one more than a pixel, of both rows at a time.
AVX2 static void two_rows_avx2(const uint8_t *const source[2], uint8_t *const target[2], const struct weights *columns)
{
  for (int x = 0; x < columns->size; ++x) {
    const ptrdiff_t from = CHANNELS * (ptrdiff_t)columns->first[x];
    const int32_t *weight = columns->weight + (ptrdiff_t)columns->taps * x;
    __m256i sums = _mm256_set1_epi32(HALF);
    for (int k = 0; k < columns->count[x]; ++k) {
      int32_t upper, lower;
      memcpy(&upper, source[0] + from + CHANNELS * k, 4);
      memcpy(&lower, source[1] + from + CHANNELS * k, 4);
      const __m256i pixels = _mm256_cvtepu8_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(upper), lower, 1));
      sums = _mm256_add_epi32(sums, _mm256_mullo_epi32(pixels, _mm256_set1_epi32(weight[k])));
    }
    sums = _mm256_srli_epi32(sums, FRACTION_BITS);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i bytes = _mm_packus_epi16(words, words);
    const int32_t upper = _mm_cvtsi128_si32(bytes), lower = _mm_extract_epi32(bytes, 1);
    memcpy(target[0] + CHANNELS * x, &upper, 4);
    memcpy(target[1] + CHANNELS * x, &lower, 4);
  }
}

AVX2 static void sum_avx2(uint8_t *const *rows, const int32_t *weight, int count, uint8_t *target, int bytes)
{
  for (int x = 0; x < bytes; x += BLOCK) {
    __m256i left = _mm256_set1_epi32(HALF), right = left;
    for (int k = 0; k < count; ++k) {
      const __m256i factor = _mm256_set1_epi32(weight[k]);
      const __m128i pixels = _mm_loadu_si128((const __m128i *)(rows[k] + x));
      left = _mm256_add_epi32(left, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(pixels), factor));
      right = _mm256_add_epi32(
        right, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(pixels, BLOCK / 2)), factor));
    }
    left = _mm256_srli_epi32(left, FRACTION_BITS);
    right = _mm256_srli_epi32(right, FRACTION_BITS);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(left, right), 0xd8);
    const __m128i sums = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    if (x + BLOCK <= bytes) {
      _mm_storeu_si128((__m128i *)(target + x), sums);
    } else {
      uint8_t block[BLOCK];
      _mm_storeu_si128((__m128i *)block, sums);
      memcpy(target + x, block, (size_t)(bytes - x));
    }
  }
}

#endif

// Writes a resized picture of rows->size x columns->size.
//
// source: height x width x 3 bytes without gaps. stride: bytes from one row of the target to the next. plain: not 0 does
// without the instructions that only some processors have. Returns 0, or -1 without memory. Any thread may call it.
int oxygen_ros_resize(const uint8_t *source, int32_t height, int32_t width, uint8_t *target, ptrdiff_t stride,
                      const struct weights *rows, const struct weights *columns, int plain)
{
  two_rows_pass two_rows = two_rows_plain;
  row_sum sum = sum_plain;
#ifdef AVX2
  if (!plain && __builtin_cpu_supports("avx2")) {
    two_rows = two_rows_avx2;
    sum = sum_avx2;
  }
#else
  (void)plain;
#endif
  const size_t source_row = CHANNELS * (size_t)width;
  const int bytes = CHANNELS * columns->size;
  // Rows that went through the first pass wait in a ring, with room behind each for whole blocks. The last row of the
  // source is copied, since behind it there is nothing to read.
  const int ring_rows = rows->taps + 2;
  const size_t ring_row = (size_t)bytes + BLOCK;
  uint8_t **pointers = malloc((size_t)rows->taps * sizeof *pointers);
  uint8_t *ring = calloc((size_t)ring_rows * ring_row + source_row + BLOCK, 1);
  if (pointers == NULL || ring == NULL) {
    free(pointers);
    free(ring);
    return -1;
  }
  uint8_t *last_row = ring + (size_t)ring_rows * ring_row;
  memcpy(last_row, source + source_row * (size_t)(height - 1), source_row);

  int done = 0;  // rows of the source that went through the first pass
  for (int y = 0; y < rows->size; ++y) {
    const int end = rows->first[y] + rows->count[y];
    for (; done < end; done += 2) {
      const uint8_t *from[2];
      uint8_t *to[2];
      for (int i = 0; i < 2; ++i) {
        const int row = done + i;
        from[i] = row < height - 1 ? source + source_row * (size_t)row : last_row;
        to[i] = ring + ring_row * (size_t)(row % ring_rows);
      }
      two_rows(from, to, columns);
    }
    for (int k = 0; k < rows->count[y]; ++k) {
      pointers[k] = ring + ring_row * (size_t)((rows->first[y] + k) % ring_rows);
    }
    sum(pointers, rows->weight + (ptrdiff_t)rows->taps * y, rows->count[y], target + stride * y, bytes);
  }
  free(pointers);
  free(ring);
  return 0;
}
