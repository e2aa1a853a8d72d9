package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"volplane.dev/volplane/internal/durable"
)

const (
	// groupFile describes a group. The file never changes.
	groupFile   = "group.json"
	groupPrefix = "group-"
)

// group describes snapshots that were created at one moment. They are in its directory: one rename creates all of them,
// and one removes them.
type group struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Sources are the ids of the source volumes, in order.
	Sources []string `json:"sources"`
	// Created is the time of creation in Unix nanoseconds.
	Created int64 `json:"created"`
}

// memberOf returns the id of a group's snapshot of a volume.
func memberOf(group, volume string) string {
	return snapshots.prefix() + strings.TrimPrefix(group, groupPrefix) + "-" + digest(volume)
}

// groupOf returns the id of the group that a snapshot belongs to; or "".
func groupOf(id string) string {
	hash, member, found := strings.Cut(strings.TrimPrefix(id, snapshots.prefix()), "-")
	if !found || snapshots.checkID(id) != nil || member == "" {
		return ""
	}
	return groupPrefix + hash
}

// group returns a group and its snapshots in the order of its volumes; errMissing if there is none.
func (p *pool) group(id string) (group, []record, error) {
	if err := groups.checkID(id); err != nil {
		return group{}, nil, err
	}
	var g group
	var members []record
	err := settled(p.path(groups, id), func(dir string) (err error) {
		g, members, err = readGroup(dir, id)
		return err
	})
	return g, members, err
}

func readGroup(dir, id string) (group, []record, error) {
	var g group
	if err := durable.ReadJSON(filepath.Join(dir, groupFile), maxSmall, &g); err != nil {
		return g, nil, damaged(dir, err)
	}
	if g.ID != id || len(g.Sources) == 0 {
		return g, nil, damaged(dir, fmt.Errorf("%s is that of %.128q with %d volumes", groupFile, g.ID, len(g.Sources)))
	}
	members := make([]record, 0, len(g.Sources))
	for _, source := range g.Sources {
		member := memberOf(id, source)
		s, err := readEntry(filepath.Join(dir, member), member)
		if err != nil {
			return g, nil, err
		}
		if s.Source != source {
			return g, nil, damaged(dir, fmt.Errorf("%s is for volume %.128q", member, s.Source))
		}
		members = append(members, s)
	}
	return g, members, nil
}

// holdAll locks several volumes or snapshots. All callers pass them in the same order, and no caller waits forever.
func (p *pool) holdAll(ctx context.Context, k kind, ids []string, how int) (all []record, release func(), err error) {
	var releases []func()
	release = func() {
		for _, f := range releases {
			f()
		}
	}
	for _, id := range ids {
		r, one, err := p.hold(ctx, k, id, how, holdLimit)
		if err != nil {
			release()
			return nil, nil, err
		}
		all, releases = append(all, r), append(releases, one)
	}
	return all, release, nil
}

// draft is a snapshot of a group that does not exist yet. Its image is locked until it is closed.
type draft struct {
	dir    string
	image  *os.File
	source record
}

// addGroup creates a group of snapshots of locked volumes, atomically. fill writes the images and returns the moment
// that they show. If a group with the id has appeared in the meantime, that one is returned.
func (p *pool) addGroup(
	ctx context.Context, g group, sources []record, fill func([]draft) (int64, error),
) (group, []record, error) {
	dir, drafts, err := p.beginGroup(g, sources)
	// They are locked until here, so that sweep does not delete them.
	defer closeAll(drafts)
	if err == nil {
		err = finishGroup(dir, g, drafts, fill)
	}
	if err != nil {
		return g, nil, errors.Join(fmt.Errorf("make %s: %w", g.ID, err), removeGroupDir(dir))
	}
	placed, err := p.place(ctx, groups, g.ID, dir, func() error {
		_, _, err := p.group(g.ID)
		return err
	})
	if !placed {
		err = errors.Join(err, removeGroupDir(dir))
	}
	if err != nil {
		return g, nil, err
	}
	return p.group(g.ID)
}

func closeAll(drafts []draft) {
	for _, d := range drafts {
		_ = d.image.Close()
	}
}

// beginGroup creates a new directory with empty images. The pool is locked until then, so a sweep sees either nothing
// or locked images. dir, if it is not empty, must be removed after an error.
func (p *pool) beginGroup(g group, sources []record) (dir string, drafts []draft, err error) {
	unlock, err := p.lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if dir, err = os.MkdirTemp(filepath.Join(p.dir, string(groups)), ".new-"); err != nil {
		return "", nil, err
	}
	for _, source := range sources {
		d := draft{dir: filepath.Join(dir, memberOf(g.ID, source.ID)), source: source}
		if err := os.Mkdir(d.dir, 0o700); err != nil {
			return dir, drafts, err
		}
		if d.image, err = newImage(d.dir); err != nil {
			return dir, drafts, err
		}
		drafts = append(drafts, d)
	}
	return dir, drafts, nil
}

// finishGroup fills and syncs everything.
func finishGroup(dir string, g group, drafts []draft, fill func([]draft) (int64, error)) error {
	created, err := fill(drafts)
	if err != nil {
		return err
	}
	g.Created = created
	for _, d := range drafts {
		r := record{ID: memberOf(g.ID, d.source.ID), Name: g.Name, Size: d.source.Size, Source: d.source.ID, Created: created}
		if err := finish(d.dir, d.image, r, func(*os.File) error { return nil }); err != nil {
			return err
		}
	}
	return durable.WriteJSON(filepath.Join(dir, groupFile), g)
}

// removeGroup deletes a group whose snapshots the caller holds.
func (p *pool) removeGroup(id string) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, _, err := p.group(id); err != nil {
		return err
	}
	return p.discard(groups, id, removeGroupDir)
}

// sweepGroup deletes a group whose creation or deletion was interrupted, unless another driver is working on it.
func sweepGroup(dir string) error {
	members, err := filepath.Glob(filepath.Join(dir, snapshots.prefix()+"*"))
	if err != nil {
		return err
	}
	for _, member := range members {
		unlock, mine := lockGarbage(member)
		defer unlock()
		if !mine {
			return nil
		}
	}
	return removeGroupDir(dir)
}

// removeGroupDir deletes the directory of a group: only what this driver creates, by name, never a tree.
func removeGroupDir(dir string) error {
	if dir == "" {
		return nil
	}
	members, err := filepath.Glob(filepath.Join(dir, snapshots.prefix()+"*"))
	if err != nil {
		return err
	}
	for _, member := range members {
		if err := removeEntry(member); err != nil {
			return err
		}
	}
	for _, name := range []string{groupFile + durable.Draft, groupFile, ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
