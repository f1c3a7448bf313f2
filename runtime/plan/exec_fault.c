/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

weft_status_t wefti_session_fail(weft_session_t *session, weft_status_t status)
{
    /* All ranks hear of a broken link by themselves, and the world goes on without the session. */
    if (wefti_fault_set(&session->fault, status, weft_last_error()) && status != WEFT_ERR_LINK) {
        wefti_endpoint_abort(session->endpoint, status, session->fault.text);
    }
    return status;
}

weft_status_t wefti_session_check_links(weft_session_t *session)
{
    wefti_link_fault_t fault;
    uint32_t at = session->faults_seen;
    if (!wefti_session_lost_link(session) ||
        !wefti_endpoint_link_fault(session->endpoint, &at, &fault)) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_LINK, "%s; create a new session to continue without this link",
                       fault.text);
}
