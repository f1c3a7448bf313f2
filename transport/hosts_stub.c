/* SPDX-License-Identifier: Apache-2.0 */
/* Until the overlay and the tcp driver are there. */
#include "transport/hosts.h"

#include "runtime/base/error.h"

#if !__has_include("transport/bootstrap/overlay.c")
__attribute__((weak)) weft_status_t wefti_overlay_open(const wefti_overlay_params_t *params,
                                                       wefti_overlay_t **out)
{
    *out = NULL;
    return wefti_error(WEFT_ERR_UNSUPPORTED, "address \"%s\": only unix:@name and unix:/path",
                       params->job->address);
}
__attribute__((weak)) const uint8_t *wefti_overlay_key(const wefti_overlay_t *o)
{
    (void)o;
    return NULL;
}
__attribute__((weak)) const char *wefti_overlay_local_address(const wefti_overlay_t *o)
{
    (void)o;
    return "";
}
__attribute__((weak)) weft_status_t wefti_overlay_all_gather(wefti_overlay_t *o, const void *s,
                                                             size_t b, void *r, uint64_t d,
                                                             weft_status_t (*c)(void *), void *u)
{
    (void)o;
    (void)s;
    (void)b;
    (void)r;
    (void)d;
    (void)c;
    (void)u;
    return WEFT_ERR_INTERNAL;
}
__attribute__((weak)) void wefti_overlay_flood(wefti_overlay_t *o, uint32_t k, const void *d,
                                               size_t b)
{
    (void)o;
    (void)k;
    (void)d;
    (void)b;
}
__attribute__((weak)) int wefti_overlay_poll_fd(const wefti_overlay_t *o)
{
    (void)o;
    return -1;
}
__attribute__((weak)) void wefti_overlay_progress(wefti_overlay_t *o)
{
    (void)o;
}
__attribute__((weak)) void wefti_overlay_close(wefti_overlay_t *o, bool f)
{
    (void)o;
    (void)f;
}
#endif
#if !__has_include("transport/tcp/tcp.c")
__attribute__((weak)) const wefti_link_driver_t wefti_link_tcp = {.name = "tcp"};
#endif
#if WEFT_HAVE_VERBS && !__has_include("transport/verbs/driver.c")
__attribute__((weak)) const wefti_link_driver_t wefti_link_verbs = {.name = "verbs"};
#endif
