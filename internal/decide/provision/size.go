package provision

import (
	"errors"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ErrTooLarge says that a size is too large for CSI.
var ErrTooLarge = errors.New("too large")

// Bytes returns a size in bytes, rounded up. CSI's sizes are int64; a Quantity may be larger.
func Bytes(q *resource.Quantity) (int64, error) {
	if q.CmpInt64(math.MaxInt64) > 0 {
		return 0, fmt.Errorf("%s is %w: drivers count up to %d bytes", q, ErrTooLarge, int64(math.MaxInt64))
	}
	return q.Value(), nil
}
