package kubetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/testkit"
)

// Eventually fails the test if f does not return "" within a minute; f returns what is missing.
func Eventually(t testing.TB, f func() string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, f)
}

// Whole compares objects in all fields that clients have written, but not in what the API adds.
func Whole() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields", "ResourceVersion"), cmpopts.IgnoreTypes(metav1.TypeMeta{}),
		cmpopts.EquateEmpty(), cmp.Transformer("named", func(uid types.UID) string {
			if strings.HasPrefix(string(uid), givenUID) {
				return ""
			}
			return string(uid)
		}),
	}
}
