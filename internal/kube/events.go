package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"volplane.dev/volplane/internal/volume"
)

// Recorder writes the reasons of decisions as events. Repeated equal events
// are counted on one object, and a noisy object is throttled.
type Recorder struct{ events record.EventRecorder }

// NewRecorder returns a recorder that reports as component until ctx ends.
func NewRecorder(ctx context.Context, client kubernetes.Interface, component string) *Recorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Recorder{events: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: volume.Domain + "/" + component})}
}

// maxNote is the longest note the API takes.
const maxNote = 1024

// Warn records that something failed or cannot go on.
func (r *Recorder) Warn(o runtime.Object, b volume.Because) {
	r.record(o, corev1.EventTypeWarning, b)
}

// Note records progress.
func (r *Recorder) Note(o runtime.Object, b volume.Because) {
	r.record(o, corev1.EventTypeNormal, b)
}

func (r *Recorder) record(o runtime.Object, kind string, b volume.Because) {
	var notes map[string]string
	if b.Next != "" {
		notes = map[string]string{volume.AnnNext: b.Next}
	}
	r.events.AnnotatedEventf(o, notes, kind, string(b.Reason), "%s", clip(b.Message))
}

func clip(s string) string {
	if len(s) <= maxNote {
		return s
	}
	return s[:maxNote-3] + "..."
}
