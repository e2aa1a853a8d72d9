package provision

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		size  string
		bytes int64
		err   error
	}{
		{"5Gi", 5 << 30, nil},
		{"0", 0, nil},
		{"1m", 1, nil},
		{"1500m", 2, nil},
		{"7Ei", 7 << 60, nil},
		{"9223372036854775807", 9223372036854775807, nil},
		{"9223372036854775808", 0, ErrTooLarge},
		// Kubernetes reads as much as it can count where the unit is binary.
		{"8Ei", 9223372036854775807, nil},
		{"1e30", 0, ErrTooLarge},
	} {
		q := resource.MustParse(c.size)
		if got, err := Bytes(&q); got != c.bytes || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v; want %d, %v", c.size, got, err, c.bytes, c.err)
		}
	}
}
