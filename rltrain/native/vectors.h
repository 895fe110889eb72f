/* Vectors of LANES floats, and activations on them. Included by tiles.h, once for each width. */

#define VEC OF(vec)
#define BITS OF(bits)
#define INLINE TARGET static inline __attribute__((always_inline))

typedef float VEC __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t BITS __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE VEC OF(select)(BITS mask, VEC yes, VEC no)
{
    return (VEC)((mask & (BITS)yes) | (~mask & (BITS)no));
}

INLINE VEC OF(clamp)(VEC x, float low, float high) /* NaN stays NaN */
{
    VEC lows = low - (VEC){}, highs = high - (VEC){};
    x = OF(select)((BITS)(x < lows), lows, x);
    return OF(select)((BITS)(x > highs), highs, x);
}

/* e^x - 1 for |x| < 88: x = n ln 2 + r, e^r by its Taylor series (r^8 / 8! < 6e-9), 2^n by the exponent's bits. */
INLINE VEC OF(expm1)(VEC x)
{
    const float magic = 0x1.8p23f; /* its sum with a small number has that number, rounded, in the lowest bits */
    VEC shifted = x * 1.44269504f + magic;
    VEC n = shifted - magic;
    VEC r = x - n * 0x1.62ep-1f; /* ln 2 in two parts, the first with few bits so that the product is exact */
    r = r - n * 0x1.0bfbe8p-15f;
    VEC p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r;
    VEC power = (VEC)(((BITS)shifted << 23) + 0x3f800000);
    return p * power + (power - 1.0f);
}

INLINE VEC OF(sigmoid)(VEC x)
{
    return 1.0f / (OF(expm1)(OF(clamp)(-x, -87, 87)) + 2.0f);
}

INLINE VEC OF(activation)(int64_t kind, VEC z)
{
    if (kind == RL_TANH) {
        VEC e = OF(expm1)(OF(clamp)(z, -9.02f, 9.02f) * 2.0f); /* beyond it tanh is 1 in float32 */
        return e / (e + 2.0f);
    }
    if (kind == RL_RELU)
        return OF(select)((BITS)(z < 0.0f), (VEC){}, z);
    if (kind == RL_ELU)
        return OF(select)((BITS)(z > 0.0f), z, OF(expm1)(OF(clamp)(z, -87, 87)));
    return z * OF(sigmoid)(z);
}

/* The activation's derivative: for silu of its sum z, for the others of its result y. */
INLINE VEC OF(derivative)(int64_t kind, VEC kept)
{
    if (kind == RL_TANH)
        return 1.0f - kept * kept;
    if (kind == RL_RELU)
        return OF(select)((BITS)(kept > 0.0f), 1.0f - (VEC){}, (VEC){});
    if (kind == RL_ELU)
        return OF(select)((BITS)(kept > 0.0f), 1.0f - (VEC){}, kept + 1.0f);
    VEC s = OF(sigmoid)(kept);
    return s * (1.0f + kept * (1.0f - s));
}

INLINE void OF(activate_all)(int64_t kind, int64_t count, const float *z, float *y)
{
    for (int64_t i = 0; i < count; i += LANES)
        *(VEC *)(y + i) = OF(activation)(kind, *(const VEC *)(z + i));
}

INLINE void OF(derive_all)(int64_t kind, int64_t count, const float *kept, float *grad)
{
    for (int64_t i = 0; i < count; i += LANES)
        *(VEC *)(grad + i) *= OF(derivative)(kind, *(const VEC *)(kept + i));
}

/* One loop for each kind: the compiler takes the choice out of it. `count` is a multiple of LANES. */
TARGET static void OF(activate)(int64_t kind, int64_t count, const float *z, float *y)
{
    switch (kind) {
    case RL_TANH: OF(activate_all)(RL_TANH, count, z, y); break;
    case RL_RELU: OF(activate_all)(RL_RELU, count, z, y); break;
    case RL_ELU: OF(activate_all)(RL_ELU, count, z, y); break;
    case RL_SILU: OF(activate_all)(RL_SILU, count, z, y); break;
    }
}

TARGET static void OF(derive)(int64_t kind, int64_t count, const float *kept, float *grad)
{
    switch (kind) {
    case RL_TANH: OF(derive_all)(RL_TANH, count, kept, grad); break;
    case RL_RELU: OF(derive_all)(RL_RELU, count, kept, grad); break;
    case RL_ELU: OF(derive_all)(RL_ELU, count, kept, grad); break;
    case RL_SILU: OF(derive_all)(RL_SILU, count, kept, grad); break;
    }
}
