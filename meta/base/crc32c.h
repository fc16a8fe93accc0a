/* CRC-32C (Castagnoli), with the CPU's instruction where there is one. crc32c(0, buf, len) starts; pass the result to go on. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *buf, size_t len);
/* The table version, any CPU (tests compare both). */
uint32_t crc32c_portable(uint32_t crc, const void *buf, size_t len);
