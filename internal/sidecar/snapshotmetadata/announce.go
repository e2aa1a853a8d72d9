package snapshotmetadata

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/volume"
)

// announcePause is the pause after an attempt to announce services that has failed.
const announcePause = time.Second

// Announcement keeps the SnapshotMetadataServices by which clients find where the changed blocks of drivers are served.
type Announcement struct {
	// Drivers are those whose changed blocks are served, with their Scope.
	Drivers *csi.Set
	// Client is a client of the API server with AnnouncementRights.
	Client kubernetes.Interface
	// Spec is what clients find.
	Spec cluster.SnapshotMetadataServiceSpec
	// Log is the log of the program.
	Log *slog.Logger
}

// AnnouncementRights returns the rights that an Announcement needs.
func AnnouncementRights() []kube.Access {
	return []kube.Access{
		kube.Write(volume.GroupMetadata, volume.ResourceMetadataServices, "list", "create", "delete"),
		kube.Write(volume.GroupMetadata, volume.ResourceMetadataServices, "update").Only("spec",
			"metadata.ownerReferences"),
		kube.Write("storage.k8s.io", "csidrivers", "list"),
	}
}

// Run announces services until ctx ends, and announces nothing else then: a driver may be away for a moment.
func (a Announcement) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	defer a.Drivers.Subscribe(func(string) { lifecycle.Wake(changed) })()
	wait := lifecycle.NewWait(a.Log, "waiting to announce who serves changed blocks")
	defer wait.Stop()
	for {
		var again <-chan time.Time
		switch err := a.announce(ctx); {
		case err == nil:
			wait.Over()
		case ctx.Err() == nil:
			wait.For(shown(err.Error()))
			again = time.After(announcePause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// announce gathers the facts, and does what is decided.
func (a Announcement) announce(ctx context.Context) error {
	f := announced{
		spec: a.Spec, serves: map[string]bool{}, owners: map[string]types.UID{},
		have: map[string]*cluster.SnapshotMetadataService{},
	}
	for _, name := range a.Drivers.Names() {
		// Of several control planes that call a driver, each on its own node, the one with the rest announces it.
		if d, ok := a.Drivers.For(name, ""); ok {
			f.serves[name] = d.Plugin.SnapshotMetadata
		}
	}
	if len(f.serves) == 0 {
		return nil
	}
	drivers, err := a.Client.StorageV1().CSIDrivers().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CSIDrivers: %w", err)
	}
	for _, d := range drivers.Items {
		f.owners[d.Name] = d.UID
	}
	services, err := kube.NewSnapshotObjects(a.Client).MetadataServices(ctx)
	if err != nil {
		return fmt.Errorf("list SnapshotMetadataServices: %w", err)
	}
	for i := range services {
		f.have[services[i].Name] = &services[i]
	}
	return a.apply(ctx, f.plan())
}

func (a Announcement) apply(ctx context.Context, p announcements) error {
	client := kube.WriteMetadataServices(a.Client)
	for _, s := range p.create {
		if _, err := client.Create(ctx, s, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create SnapshotMetadataService %s: %w", s.Name, err)
		}
	}
	for _, s := range p.update {
		if _, err := client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update SnapshotMetadataService %s: %w", s.Name, err)
		}
	}
	for _, s := range p.remove {
		err := client.Delete(ctx, s.Name, *metav1.NewPreconditionDeleteOptions(string(s.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete SnapshotMetadataService %s: %w", s.Name, err)
		}
	}
	return nil
}

// announced are the facts about what is announced, by the names of drivers.
type announced struct {
	spec cluster.SnapshotMetadataServiceSpec
	// serves says of each driver that is called whether it knows changed blocks.
	serves map[string]bool
	// have are the objects that exist, and owners the UIDs of the CSIDrivers.
	have   map[string]*cluster.SnapshotMetadataService
	owners map[string]types.UID
}

// announcements are the objects to write.
type announcements struct {
	create, update, remove []*cluster.SnapshotMetadataService
}

// plan decides what to write. Objects that others have made stay as they are. Those of drivers that are removed go with
// their CSIDriver.
func (f announced) plan() (p announcements) {
	for _, driver := range slices.Sorted(maps.Keys(f.serves)) {
		have := f.have[driver]
		switch {
		case have != nil && have.Labels[volume.LabelMadeBy] != volume.Program:
		case have == nil && f.serves[driver]:
			p.create = append(p.create, f.complete(&cluster.SnapshotMetadataService{ObjectMeta: metav1.ObjectMeta{
				Name: driver, Labels: map[string]string{volume.LabelMadeBy: volume.Program},
			}}))
		case have != nil && !f.serves[driver]:
			p.remove = append(p.remove, have)
		case have != nil:
			if want := f.complete(have.DeepCopy()); !equality.Semantic.DeepEqual(want, have) {
				p.update = append(p.update, want)
			}
		}
	}
	return p
}

// complete returns an object with what it has to say.
func (f announced) complete(s *cluster.SnapshotMetadataService) *cluster.SnapshotMetadataService {
	s.Spec, s.OwnerReferences = f.spec, nil
	if uid := f.owners[s.Name]; uid != "" {
		s.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver", Name: s.Name, UID: uid,
		}}
	}
	return s
}
