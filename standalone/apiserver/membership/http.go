package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
)

// largest limits the size of a request body.
const largest = 16 << 10

// answerer returns the response of a request.
type answerer func(r *http.Request, body []byte) ([]byte, error)

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	error
}

func refuseWith(status int, format string, args ...any) error {
	return refusal{status, fmt.Errorf(format, args...)}
}

func serve(w http.ResponseWriter, r *http.Request, answer answerer) {
	if r.Method != http.MethodPost {
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largest))
	if err != nil {
		http.Error(w, "the request cannot be read, or is too large", http.StatusRequestEntityTooLarge)
		return
	}
	said, err := answer(r, body)
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	// Some answers are secret.
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(said)
}

// statusOf returns the HTTP status of an error, which shows the client whether a retry is useful.
func statusOf(err error) int {
	var refused refusal
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		return refused.status
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case errors.As(err, &status) && status.Status().Code != 0:
		return int(status.Status().Code)
	}
	return http.StatusInternalServerError
}

// read parses a request about a node.
func read(body []byte, into any, node *string) error {
	if err := json.Unmarshal(body, into); err != nil {
		return refuseWith(http.StatusBadRequest, "read request: %w", err)
	}
	if p := validation.IsDNS1123Subdomain(*node); len(p) > 0 {
		return refuseWith(http.StatusBadRequest, "node name %.80q: %s", *node, p[0])
	}
	return nil
}
