package attachdetach_test

import (
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/decide/attach"
)

// TestStories plays testdata/*.txt. "attacher" makes the attacher do all its pending work.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller {
				return attachdetach.New(env, attachdetach.Options{Now: time.Now})
			},
			Commands: map[string]func([]string) error{"attacher": func([]string) error { return playAttacher(s) }},
		}
	})
}

// playAttacher attaches and detaches all volumes with pending work.
func playAttacher(s *story.Scene) error {
	resource := storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	all, err := s.API.Tracker().List(resource, storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"), "")
	if err != nil {
		return err
	}
	for i := range all.(*storagev1.VolumeAttachmentList).Items {
		switch a := all.(*storagev1.VolumeAttachmentList).Items[i].DeepCopy(); {
		case a.DeletionTimestamp != nil && attach.HasFinalizer(a):
			a.Finalizers = nil
			s.API.Edit(a)
		case a.DeletionTimestamp == nil && !a.Status.Attached:
			attached(a)
			s.API.Edit(a)
		}
	}
	return nil
}
