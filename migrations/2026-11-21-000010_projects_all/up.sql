CREATE TABLE projects (
    id text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    identifier text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    image_url text NOT NULL,
    visibility text NOT NULL CHECK (visibility IN ('private', 'public')),
    archived boolean NOT NULL DEFAULT false,
    created_by text NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    UNIQUE (account_id, identifier)
);
CREATE INDEX projects_newest ON projects (account_id, created_ms DESC, id DESC);

CREATE TABLE project_members (
    account_id text NOT NULL,
    project_id text NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id text NOT NULL REFERENCES users ON DELETE CASCADE,
    role text NOT NULL CHECK (role IN ('viewer', 'editor', 'owner')),
    added_ms bigint NOT NULL,
    PRIMARY KEY (account_id, project_id, user_id)
);
CREATE INDEX project_members_of_project ON project_members (project_id);
CREATE INDEX project_members_of_user ON project_members (user_id);
