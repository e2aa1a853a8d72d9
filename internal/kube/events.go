package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	return NewNodeRecorder(ctx, client, component, "")
}

// NewNodeRecorder is NewRecorder for a component of a node, which its events name as those of a kubelet do.
func NewNodeRecorder(ctx context.Context, client kubernetes.Interface, component, node string) *Recorder {
	b := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		QPS: eventsPerSecond,
	}))
	b.StartRecordingToSink(sink{&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}})
	source := corev1.EventSource{Component: volume.Domain + "/" + component, Host: node}
	return &Recorder{events: b.NewRecorder(scheme.Scheme, source)}
}

// eventsPerSecond is how many events of one object are sent after its first 25. client-go sends one in five minutes, so
// that the attempt and the next try of a call that fails would soon be those of long ago.
const eventsPerSecond = 0.1

// maxNote is the length limit, in bytes, that the API server has for the message of an event.
const maxNote = 1024

// Warn records an event of type Warning: something failed or is blocked.
func (r *Recorder) Warn(o runtime.Object, b volume.Because) { r.WarnWith(o, b, nil) }

// WarnWith is Warn with more annotations.
func (r *Recorder) WarnWith(o runtime.Object, b volume.Because, notes map[string]string) {
	r.record(o, corev1.EventTypeWarning, b, notes)
}

// Note records an event of type Normal.
func (r *Recorder) Note(o runtime.Object, b volume.Because) {
	r.record(o, corev1.EventTypeNormal, b, nil)
}

func (r *Recorder) record(o runtime.Object, kind string, b volume.Because, notes map[string]string) {
	all := map[string]string{}
	if !b.Next.IsZero() {
		all[volume.AnnNext] = b.Next.String()
	}
	if cause := b.Cause.String(); cause != "" {
		all[volume.AnnCause] = cause
	}
	maps.Copy(all, notes)
	suffix := ""
	if kind == corev1.EventTypeWarning {
		suffix = b.Next.Suffix()
	}
	r.events.AnnotatedEventf(o, all, kind, string(b.Reason), "%s%s", clip(b.Message, maxNote-len(suffix)), suffix)
}

// sink sends the attempt and the next try with the count of a repeated event: client-go's patch has no annotations. It
// also makes client-go retry events that the API server could not write.
type sink struct{ record.EventSink }

// Create writes a new event.
func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	written, err := s.EventSink.Create(e)
	return written, sentAgain(err)
}

// sentAgain returns an error after which client-go sends an event again, if that can succeed. client-go gives up an
// event after any status from the API server, even that it is too busy, or that its store has no quorum.
func sentAgain(err error) error {
	for _, passes := range []func(error) bool{
		apierrors.IsTooManyRequests, apierrors.IsServerTimeout, apierrors.IsTimeout, apierrors.IsServiceUnavailable,
		apierrors.IsInternalError,
	} {
		if passes(err) {
			return fmt.Errorf("the API server cannot write the event now: %w", err)
		}
	}
	return err
}

// Patch updates an event that was recorded before.
func (s sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	var fields map[string]any
	if e.Annotations[volume.AnnAttempt] != "" && json.Unmarshal(patch, &fields) == nil {
		fields["metadata"] = map[string]any{"annotations": e.Annotations}
		with, err := json.Marshal(fields)
		if err != nil {
			return nil, fmt.Errorf("encode event %s: %w", e.Name, err)
		}
		patch = with
	}
	written, err := s.EventSink.Patch(e, patch)
	return written, sentAgain(err)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most-3] + "..."
}
