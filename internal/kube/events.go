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

// Recorder writes the reasons of decisions as events. Equal events are counted in one Event object,
// and the events of one object are rate-limited.
type Recorder struct{ events record.EventRecorder }

// NewRecorder returns a recorder for component that sends events until ctx ends.
func NewRecorder(ctx context.Context, client kubernetes.Interface, component string) *Recorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Recorder{events: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: volume.Domain + "/" + component})}
}

// maxNote is the length limit, in bytes, that the API server has for the message of an event.
const maxNote = 1024

// Warn records an event of type Warning: something failed or cannot go on.
func (r *Recorder) Warn(o runtime.Object, b volume.Because) {
	r.record(o, corev1.EventTypeWarning, b)
}

// Note records an event of type Normal.
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
