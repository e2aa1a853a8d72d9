package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Client returns a client of the member that uses no connection.
func (s *Server) Client() *clientv3.Client { return v3client.New(s.etcd.Server) }

// Defragment rewrites the database without deleted data.
func (s *Server) Defragment() error { return s.etcd.Server.Backend().Defrag() }
